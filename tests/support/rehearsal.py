"""A rehearsal of CUDA without a GPU: tensors that claim to lie there, around real CPU values.

Numbers are computed on the CPU, by the code that runs on a GPU; what CUDA would refuse, mixing
devices, is refused here, and copies between host and device, waits and launches are counted. What
it can't show: speed, numerics of CUDA's kernels, asynchronous faults.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # imported by the first dispatch, which must find torch.cuda as it is
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from kvbench.decode import cuda_kernels
from kvbench.model.loading import LoadedModel
from support.paths import ROOT

CPU = torch.device("cpu")
_OURS = tuple(str(ROOT / folder) for folder in ("kvbench", "methods"))
_WAITS = {
    "_local_scalar_dense",
    "equal",
    "nonzero",
    "masked_select",
    "unique",
    "_unique2",
    "unique_consecutive",
    "unique_dim",
    "is_nonzero",
    "bincount",
    "_linalg_check_errors",
}
"""Operations whose result the host reads, or whose shape it has to know."""
_NO_LAUNCH = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "detach",
    "lift_fresh",
    "_unsafe_view",
    "_fused_sdp_choice",
}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class MixedDevices(RuntimeError):
    """What CUDA would refuse."""


class Claimed(Tensor):
    """A tensor that says it lies on `cuda:N`; its numbers lie in `inner`."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device) -> Claimed:
        claimed: Claimed = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=device,
        )
        claimed.inner = inner
        return claimed

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Claimed({self.inner!r}, {self.device})"

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        now = Rehearsal.now
        if now is not None and func in now.intercepted:
            return now.intercepted[func](*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        raise AssertionError(f"{func} outside the rehearsal")


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, Claimed) else x


class Rehearsal(TorchDispatchMode):
    """Serves claimed tensors while it is entered, and counts."""

    now: Rehearsal | None = None

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        """`launches`, `waits`, `sent` (host to device) and `moved` (device to device)."""
        self.by_name: Counter[str] = Counter()
        """The same by operation, for who reads a failure."""
        self.recording: list[Callable[[], None]] | None = None
        """What a graph that is being recorded launches."""
        self.where: Counter[str] = Counter()
        """Lines of kvbench that wait or send."""
        self.intercepted: dict[Any, Callable[..., Any]] = {
            Tensor.__getitem__: self._getitem,
            Tensor.__setitem__: self._setitem,
            Tensor.untyped_storage: lambda x: x.inner.untyped_storage(),
            Tensor.data_ptr: lambda x: x.inner.data_ptr(),
            Tensor.contiguous: torch.ops.aten.contiguous,
            Tensor.__invert__: torch.ops.aten.bitwise_not,
            Tensor.copy_: torch.ops.aten.copy_,
            Tensor.nonzero: torch.ops.aten.nonzero,
            torch.nonzero: torch.ops.aten.nonzero,
            Tensor.tolist: self._told("tolist"),
            Tensor.item: self._told("item"),
            Tensor.__int__: self._told("__int__"),
            Tensor.__float__: self._told("__float__"),
            Tensor.__bool__: self._told("__bool__"),
            Tensor.__index__: self._told("__index__"),
            Tensor.numpy: self._refused,
            torch.nn.functional.scaled_dot_product_attention: self._sdpa,
        }

    def __enter__(self) -> Rehearsal:
        Rehearsal.now = self
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        Rehearsal.now = None

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Serve what is called within the service of an operation."""
        super().__enter__()
        try:
            yield
        finally:
            super().__exit__(None, None, None)

    @contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        """What is counted inside."""
        before, names, found = self.counts.copy(), self.by_name.copy(), Counter[str]()
        yield found
        found.update(self.counts - before)
        found.update({f"  {n}": c for n, c in (self.by_name - names).items()})

    def launched(self, name: str, kind: str = "launches") -> None:
        """Count one."""
        self.counts[kind] += 1
        self.by_name[f"{kind} {name}"] += 1
        if kind != "launches":
            frame: Any = sys._getframe(1)
            while frame is not None and not frame.f_code.co_filename.startswith(_OURS):
                frame = frame.f_back
            if frame is not None:
                file = frame.f_code.co_filename[len(str(ROOT)) + 1 :]
                self.where[f"{kind} {name} {file}:{frame.f_lineno}"] += 1

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        name = func.overloadpacket.__name__
        tensors = [x for x in tree_leaves((args, named)) if isinstance(x, Tensor)]
        asked = named.get("device")
        asked = None if asked is None else _numbered(torch.device(asked))
        claimed = [x for x in tensors if isinstance(x, Claimed)]
        to_cuda = asked is not None and asked.type == "cuda"
        if not claimed and not to_cuda:
            return func(*args, **named)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            # Inference mode hands over what consists of other operations whole.
            with self._inside():
                return func.decompose(*args, **named)
        target = self._target(name, tensors, claimed, asked)
        wants_device = "device" in named
        if wants_device:
            named["device"] = CPU
        if named.get("pin_memory"):
            named["pin_memory"] = False
        self._count(func, name, tensors, claimed, target, named)
        plain_args, plain_named = tree_map(_inner, (args, named))
        kernel = _ON_THE_CPU.get(name, func)
        found = kernel(*plain_args, **plain_named)
        if target is None or target.type == "cpu":
            assert self.recording is None, f"{name}: a graph cannot wait for the device"
            return found
        if not _is_view(func) and name not in _NO_LAUNCH:
            self._record(lambda: kernel(*plain_args, **plain_named), found)
        known = {id(x.inner): x for x in claimed}
        leaves, spec = tree_flatten(found)
        wrapped = []
        for leaf in leaves:
            if not isinstance(leaf, Tensor):
                wrapped.append(leaf)
            elif id(leaf) in known:
                wrapped.append(known[id(leaf)])
            else:
                wrapped.append(Claimed(leaf, target))
        return spec.unflatten(wrapped)

    def _target(
        self,
        name: str,
        tensors: Sequence[Tensor],
        claimed: Sequence[Claimed],
        asked: torch.device | None,
    ) -> torch.device | None:
        """Where the results lie; refuses what CUDA refuses."""
        if name in ("_to_copy", "copy_"):
            return asked if asked is not None else tensors[0].device
        if asked is not None:
            return asked
        devices = {x.device for x in claimed}
        if len(devices) > 1:
            raise MixedDevices(f"{name}: {sorted(map(str, devices))}")
        host = [x for x in tensors if not isinstance(x, Claimed)]
        if name in _INDEXING:
            # Indices may lie on the CPU; the values that are read or written may not.
            first = tensors[0]
            if not isinstance(first, Claimed):
                raise MixedDevices(f"{name}: a CPU tensor is indexed by one of {devices}")
            written = tensors[-1] if "put" in name else first
            if not isinstance(written, Claimed) and written.dim():
                raise MixedDevices(f"{name}: CPU values are written to {devices}")
        elif any(x.dim() for x in host):
            raise MixedDevices(f"{name}: {devices} and the CPU")
        return devices.pop()

    def _count(
        self,
        func: Any,
        name: str,
        tensors: Sequence[Tensor],
        claimed: Sequence[Claimed],
        target: torch.device | None,
        named: Mapping[str, Any],
    ) -> None:
        if name in ("_to_copy", "copy_"):
            source = tensors[-1]
            from_device, to_device = source.device, target
            assert to_device is not None
            if from_device == to_device:
                self.launched(name)
            elif from_device.type == to_device.type:
                self.launched(name, "moved")
            elif to_device.type == "cpu":
                self.launched(name, "waits")
            else:
                self.launched(name, "sent")
                # From pinned memory the copy is queued like a launch; else the host waits.
                queued = named.get("non_blocking") and hasattr(source, "is_pinned_here")
                if not queued and source.dim():
                    self.launched(name, "waits")
            return
        if name in _INDEXING:
            indices = [x for x in tensors[1:] if x.dtype in (torch.int64, torch.int32, torch.bool)]
            if any(not isinstance(x, Claimed) for x in indices):
                self.launched(name, "sent")
                self.launched(name, "waits")
            if any(x.dtype == torch.bool for x in indices):
                self.launched(name, "waits")
        if name in _WAITS or (name == "repeat_interleave" and named.get("output_size") is None):
            self.launched(name, "waits")
        if not _is_view(func) and name not in _NO_LAUNCH:
            self.launched(name)

    def _record(self, act: Callable[[], Any], found: Any) -> None:
        """Let a graph that is being recorded do this again, into the same memory."""
        if self.recording is None:
            return

        def again() -> None:
            for held, new in zip(tree_leaves(found), tree_leaves(act()), strict=True):
                if isinstance(held, Tensor) and held is not new:
                    held.copy_(new)

        self.recording.append(again)

    def _getitem(self, x: Tensor, index: Any) -> Any:
        """Indexing, which asks CUDA for its current device before anything is dispatched."""
        return self._indexed(x, index, lambda inner, at: inner[at])

    def _setitem(self, x: Tensor, index: Any, value: Any) -> None:
        if isinstance(value, Tensor) and value.dim() and _device(value) != _device(x):
            same = {_device(value).type, _device(x).type} == {"cpu", "cuda"}
            self.launched("__setitem__", "sent" if same else "moved")
            if same:
                self.launched("__setitem__", "waits")

        def put(inner: Tensor, at: Any) -> None:
            inner[at] = _inner(value)

        self.launched("__setitem__")
        self._record(lambda: put(_inner(x), tree_map(_inner, index)), None)
        self._indexed(x, index, put)

    def _indexed(self, x: Tensor, index: Any, act: Callable[[Tensor, Any], Any]) -> Any:
        leaves = [i for i in tree_leaves(index) if isinstance(i, Tensor)]
        for leaf in leaves:
            if not isinstance(x, Claimed):
                raise MixedDevices(f"indexing: a CPU tensor by one of {leaf.device}")
            if isinstance(leaf, Claimed) and leaf.device != x.device:
                raise MixedDevices(f"indexing: {x.device} by {leaf.device}")
        lists = [i for i in (index if isinstance(index, tuple) else (index,)) if type(i) is list]
        if lists or any(not isinstance(i, Claimed) for i in leaves):
            self.launched("__getitem__", "sent")
            self.launched("__getitem__", "waits")
        if any(i.dtype == torch.bool for i in leaves):
            self.launched("__getitem__", "waits")
        assert isinstance(x, Claimed)
        with _outside():
            found = act(x.inner, tree_map(_inner, index))
        if not isinstance(found, Tensor):
            return found
        if leaves or lists:
            self.launched("__getitem__")
            at = tree_map(_inner, index)
            self._record(lambda: act(x.inner, at), found)
        return Claimed(found, x.device)

    def _told(self, name: str) -> Callable[[Claimed], Any]:
        """What makes the host wait for numbers."""

        def told(x: Claimed) -> Any:
            assert self.recording is None, f"{name}: a graph cannot wait for the device"
            self.launched(name, "waits")
            return getattr(x.inner, name)()

        return told

    def _refused(self, x: Claimed, *_: Any, **__: Any) -> Any:
        raise TypeError(f"can't convert {x.device} device type tensor to numpy")

    def _sdpa(self, *args: Any, **named: Any) -> Any:
        """One launch: which kernel CUDA would take is not told here."""
        tensors = [x for x in tree_leaves((args, named)) if isinstance(x, Tensor)]
        devices = {_device(x) for x in tensors}
        if len(devices) > 1:
            raise MixedDevices(f"scaled_dot_product_attention: {devices}")
        self.launched("scaled_dot_product_attention")
        args, named = tree_map(_inner, (args, named))
        attend = torch.nn.functional.scaled_dot_product_attention
        with _outside():
            out = attend(*args, **named)
        self._record(lambda: attend(*args, **named), out)
        return Claimed(out, devices.pop())


def _is_view(func: Any) -> bool:
    """Whether an operation's results lie in the memory of what it was given."""
    returns = func._schema.returns
    return bool(returns) and all(
        r.alias_info is not None and not r.alias_info.is_write for r in returns
    )


def _device(x: Tensor) -> torch.device:
    return x.device


def _flash(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, is_causal: bool = False, **named: Any
) -> tuple[Tensor, ...]:
    """CUDA's flash attention; what follows the log-sum-exp is for gradients."""
    assert q.shape[1] == k.shape[1] and dropout == 0
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = kernel(q, k, v, is_causal=is_causal, **named)
    unread = torch.empty(0)
    return out, lse, unread, unread, q.shape[2], k.shape[2], unread, unread, unread


def _efficient(
    q: Tensor, k: Tensor, v: Tensor, bias: None, with_lse: bool, *args: Any, **named: Any
) -> tuple[Tensor, ...]:
    """CUDA's memory-efficient attention, whose sums come padded to a multiple of 32 queries."""
    assert bias is None and with_lse
    out, lse, unread, *_ = _flash(q, k, v, *args, **named)
    padding = (0, -lse.shape[2] % 32)
    return out, torch.nn.functional.pad(lse, padding, value=torch.nan), unread, unread


_ON_THE_CPU: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_efficient_attention": _efficient,
}
"""Kernels that only CUDA has."""


@contextmanager
def _outside() -> Iterator[None]:
    """Compute on the plain values, which no mode has to see."""
    with torch.utils._python_dispatch._disable_current_modes():
        yield


def _numbered(device: torch.device) -> torch.device:
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", 0)
    return device


@contextmanager
def rehearsing() -> Iterator[Rehearsal]:
    """CUDA as far as Python asks for it, and a `Rehearsal` entered.

    All of it under inference mode, of whose tensors wrappers can't leave it.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        for name in ("_lazy_init", "synchronize", "empty_cache", "set_device"):
            stack.enter_context(mock.patch.object(torch.cuda, name, lambda *_: None))
        for name in ("_exchange_device", "_maybe_exchange_device"):
            stack.enter_context(mock.patch.object(torch.cuda, name, lambda index: 0))
        stack.enter_context(mock.patch.object(Tensor, "pin_memory", _pinned))
        stack.enter_context(mock.patch.object(torch.cuda, "CUDAGraph", Graph))
        stack.enter_context(mock.patch.object(torch.cuda, "graph", Graph.recorded))
        # As on CUDA: one kernel for half precision, another for float32.
        halves = (torch.float16, torch.bfloat16)
        for name, takes in (
            ("can_use_flash_attention", lambda asked: asked.query.dtype in halves),
            ("can_use_efficient_attention", lambda asked: True),
        ):
            stack.enter_context(mock.patch.object(torch.backends.cuda, name, takes))
        for name in ("_append", "_read", "_merge"):
            if hasattr(cuda_kernels, name):
                kernel = _Launched(getattr(cuda_kernels, name), name)
                stack.enter_context(mock.patch.object(cuda_kernels, name, kernel))
        for name in ("tensor", "as_tensor"):
            made = _made_on_the_host(getattr(torch, name))
            stack.enter_context(mock.patch.object(torch, name, made))
        yield stack.enter_context(Rehearsal())


class _Launched:
    """One of Triton's kernels, run by its interpreter on what claimed tensors hold."""

    def __init__(self, kernel: Any, name: str) -> None:
        self._kernel = kernel
        self._name = name

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **named: Any) -> None:
            now = Rehearsal.now
            assert now is not None
            devices = {_device(x) for x in args if isinstance(x, Tensor)}
            if len(devices) != 1 or CPU in devices:
                raise MixedDevices(f"{self._name}: {devices}")
            now.launched(self._name)
            inner = tree_map(_inner, args)
            with _outside():
                self._kernel[grid](*inner, **named)
            now._record(lambda: self._kernel[grid](*inner, **named), None)

        return launch


class Graph:
    """`torch.cuda.CUDAGraph`: does again, on the same memory, what was launched while recording.

    What the host computed meanwhile is not computed again, as on a GPU.
    """

    def __init__(self) -> None:
        self._actions: list[Callable[[], None]] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        now = Rehearsal.now
        assert now is not None
        now.recording = self._actions
        try:
            yield
        finally:
            now.recording = None

    def replay(self) -> None:
        now = Rehearsal.now
        assert now is not None
        now.launched("replay")
        with _outside():
            for act in self._actions:
                act()


def _pinned(x: Tensor, *_: Any) -> Tensor:
    """A copy in memory that CUDA copies from while the host goes on."""
    held = x.clone()
    held.is_pinned_here = True  # type: ignore[attr-defined]
    return held


def _made_on_the_host(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`torch.tensor(numbers, device=...)`, which sends what the host made."""

    def made(data: Any, *, device: Any = None, **named: Any) -> Tensor:
        if device is None and isinstance(data, Claimed):
            return data
        found = make(data, **named)
        return found if device is None else found.to(device)

    return made


@contextmanager
def claimed(model: LoadedModel, devices: int = 1) -> Iterator[LoadedModel]:
    """A model whose weights claim CUDA, its layers on so many devices, and are given back.

    Between devices, modules fetch their inputs as accelerate's hooks do: by a `forward` that wraps
    their own.
    """
    from dataclasses import replace

    from kvbench.model.rotary import RotaryTables

    network = model.network
    layers = list(network.model.layers)
    places: dict[nn.Module, torch.device] = {}
    for i, layer in enumerate(layers):
        places[layer] = torch.device("cuda", i * devices // len(layers))
    first, last = torch.device("cuda", 0), torch.device("cuda", devices - 1)
    places |= {network.model.embed_tokens: first, network.model.rotary_emb: first}
    places |= {network.model.norm: last, network.lm_head: last}
    held: list[tuple[dict[str, Any], str, Any]] = []
    forwards = []
    try:
        for top, device in places.items():
            for module in top.modules():
                for table in (module._parameters, module._buffers):
                    for name, tensor in list(table.items()):
                        if tensor is not None:
                            held.append((table, name, tensor))
                            table[name] = Claimed(tensor.detach(), device)
            if devices > 1:
                forwards.append(top)
                top.forward = _fetching(top.forward, device)  # type: ignore[method-assign]
        for module in network.modules():
            for table in (module._parameters, module._buffers):
                assert all(x is None or isinstance(x, Claimed) for x in table.values())
        yield replace(model, rotary_tables=RotaryTables())
    finally:
        for table, name, tensor in held:
            table[name] = tensor
        for top in forwards:
            del top.forward


def _fetching(forward: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    def fetch(x: Any) -> Any:
        return x.to(device) if isinstance(x, Tensor) else x

    def fetched(*args: Any, **named: Any) -> Any:
        server = named.pop("kvbench", None)
        args, named = tree_map(fetch, (args, named))
        if server is not None:
            named["kvbench"] = server
        return forward(*args, **named)

    return fetched
