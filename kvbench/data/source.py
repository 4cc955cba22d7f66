"""Which source of records a setting `data` names."""

from __future__ import annotations

import zipfile
from pathlib import Path

from kvbench.base.errors import UserError
from kvbench.base.suggest import nearest
from kvbench.data.files import HUB_REPO, HUB_REVISION, SAMPLES, DataSource, FolderSource, ZipSource
from kvbench.data.hub import open_hub


def open_source(
    data: str | Path,
    *,
    hub_repo: str = HUB_REPO,
    revision: str | None = None,
    endpoint: str | None = None,
) -> DataSource:
    """Open what the setting `data` names.

    Args:
        data: `hub`, `sample`, or the path of a folder or zip of `<task>.jsonl` files.
        hub_repo: dataset repository for `hub`.
        revision: its branch, tag or commit; None is HUB_REVISION for HUB_REPO, else `main`.
        endpoint: the hub's address; None is the client's own (HF_ENDPOINT).

    Raises:
        UserError: there is no such place, or the hub cannot be reached.
    """
    if data == "hub":
        default = HUB_REVISION if hub_repo == HUB_REPO else "main"
        return open_hub(hub_repo, revision or default, endpoint)
    if data == "sample":
        return FolderSource(SAMPLES, "kvbench's own sample suite: it is not LongBench")
    path = Path(data).expanduser()
    if path.is_dir():
        return FolderSource(path, f"LongBench-format files in {path}")
    if path.is_file():
        if not zipfile.is_zipfile(path):
            raise UserError(
                f"data={data} is not a zip file: give a folder or zip of <task>.jsonl files"
            )
        return ZipSource(path, f"LongBench-format files in {path}")
    close = nearest(str(data), ("hub", "sample"), cutoff=0.6)
    meant = f" (did you mean {close}?)" if close else ""
    raise UserError(
        f"data={data} does not exist{meant}: give hub, sample, or a folder or zip of <task>.jsonl"
    )
