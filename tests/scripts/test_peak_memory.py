"""The memory script's own numbers at 8192 tokens: no T x T tensor anywhere."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from support.paths import ROOT

SCRIPT = ROOT / "scripts" / "peak_memory.py"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_snapkv_at_8192_tokens_peaks_within_1_3_times_fullkv() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--json"], stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    assert found["tokens"] == 8192 and found["native_cache_mib"] == 128
    assert found["peak_quotient"] <= 1.3
    assert found["peak_quotient_above_model"] <= 1.3
    # The prefill's cache, its copy with head-room for decoding, and a few layers' activations;
    # the logits of all heads of one layer alone would be 2048 MiB.
    assert found["fullkv_peak_above_model_mib"] < 3.5 * found["native_cache_mib"]
