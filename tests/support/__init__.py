"""What several test files share: helpers, hand-made data, slow twins. Fixtures: conftest.py."""
