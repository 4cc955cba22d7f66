"""Hydra configuration groups; installed as `kvbench.conf`."""
