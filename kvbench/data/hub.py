"""Fetches LongBench from the Hugging Face hub, through its own client and cache."""

from __future__ import annotations

import re
from pathlib import Path

from kvbench.base.errors import UserError
from kvbench.data.files import DataSource, ParquetSource, ZipSource, is_commit

ARCHIVE = "data.zip"
"""The authors' layout: one archive with `data/<task>.jsonl`. `datasets` >= 4 runs no loading
script, so the archive is read directly."""

_PARQUET = re.compile(r"(?:.*/)?(?P<task>[^/]+)/(?:test-[^/]*|test/[^/]*)\.parquet")
"""A converted layout: `<task>/test-00000-of-00001.parquet`, or `<task>/test/0000.parquet`."""


def open_hub(repo: str, revision: str, endpoint: str | None = None) -> DataSource:
    """Open a dataset repository in the authors' or the converted layout.

    A commit that is in the client's cache already is read without a network.

    Args:
        repo: such as `zai-org/LongBench`.
        revision: branch, tag or commit; what it resolves to is the source's `revision`.
        endpoint: the hub's address; None is the client's own.

    Raises:
        UserError: the hub cannot be reached, or the repository has neither layout.
    """
    from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache

    def described(commit: str) -> str:
        return f"LongBench from {repo} at {commit[:12]}"

    if is_commit(revision):
        cached = try_to_load_from_cache(repo, ARCHIVE, revision=revision, repo_type="dataset")
        if isinstance(cached, str):
            return ZipSource(Path(cached), described(revision), revision)
    try:
        info = HfApi(endpoint=endpoint).dataset_info(repo, revision=revision, timeout=30)
    except Exception as error:  # its network errors share no base class across its versions
        raise _unreachable(repo, revision, error) from error
    commit = info.sha or revision

    def fetch(name: str) -> Path:
        try:
            return Path(
                hf_hub_download(repo, name, repo_type="dataset", revision=commit, endpoint=endpoint)
            )
        except Exception as error:  # as above
            raise _unreachable(repo, commit, error) from error

    names = sorted(sibling.rfilename for sibling in info.siblings or ())
    if ARCHIVE in names:
        return ZipSource(fetch(ARCHIVE), described(commit), commit)
    files: dict[str, list[str]] = {}
    for name in names:
        match = _PARQUET.fullmatch(name)
        if match:
            files.setdefault(match["task"], []).append(name)
    if not files:
        raise UserError(
            f"{repo} at {commit[:12]} holds neither {ARCHIVE} nor <task>/test-*.parquet: "
            "give data=PATH with the unpacked files, or data=sample"
        )
    return ParquetSource(files, fetch, described(commit), commit)


def _unreachable(repo: str, revision: str, error: Exception) -> UserError:
    """The error for a repository that did not answer, with the ways out."""
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return UserError(
        f"{repo} at {revision[:12]} cannot be fetched from the hub ({said}): "
        "give data=PATH with the unpacked files, or data=sample"
    )
