"""A GPU that is not there: shapes, dtypes and devices of CUDA tensors are real, numbers are not.

torch's fake tensors run forward passes as `cuda:0` would, autocast included, and refuse what CUDA refuses: operands of
two dtypes or on two devices. Backward passes need an accelerator, and kernels that only a GPU chooses are stand-ins.
"""

import ctypes
import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from lm.hardware import Hardware

CPU, CUDA, DEVICE_TYPES = 0, 1, 22  # of c10/core/DeviceType.h
_REAL_TENSOR = torch.tensor
FREE = 80 * 10**9  # bytes
GUARDS = "_ZN3c104impl26device_guard_impl_registryE"  # c10::impl::device_guard_impl_registry


@contextmanager
def fake_cuda() -> Iterator[None]:
    """While open, torch has a GPU, and new tensors are fake. Skips where it cannot be faked."""
    if sys.platform != "linux" or torch.version.cuda is not None:
        pytest.skip("needs torch for CPUs on Linux")
    with pytest.MonkeyPatch.context() as patch, _guard(), _forgetting():
        answers = {
            "is_available": True, "is_bf16_supported": True, "current_device": 0, "mem_get_info": (FREE, FREE),
            "memory_reserved": 0, "memory_allocated": 0, "max_memory_allocated": 0, "_lazy_init": None,
        }  # fmt: skip
        for name, answer in answers.items():
            patch.setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
        patch.setattr(torch, "tensor", _tensor)
        patch.setattr(nn.Module, "to", _moved)
        patch.setattr(Hardware, "torch_device", property(_indexed))
        patch.setattr(F, "scaled_dot_product_attention", _attention(F.scaled_dot_product_attention))
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield


@contextmanager
def _guard() -> Iterator[None]:
    """Give CUDA the CPU's device guard, which autograd asks for where it notes what it will need.

    It does not know which GPU is the current one: within, devices are named with their index.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * DEVICE_TYPES).in_dll(library, GUARDS)
    before, guards[CUDA] = guards[CUDA], guards[CPU]
    try:
        yield
    finally:
        guards[CUDA] = before


@contextmanager
def _forgetting() -> Iterator[None]:
    """Empty the caches of the library before and after: they hold tensors, and answers about devices."""
    defined = [each for name, module in sys.modules.items() if name.startswith("lm.") for each in vars(module).values()]
    functions = [each for each in defined if isinstance(each, FunctionType)]
    enclosed = [cell.cell_contents for each in functions for cell in each.__closure__ or ()]
    caches = [each for each in (*defined, *enclosed) if isinstance(each, functools._lru_cache_wrapper)]
    try:
        for cache in caches:
            cache.cache_clear()
        yield
    finally:
        for cache in caches:
            cache.cache_clear()


def _tensor(data: object, *, device: torch.device | str | None = None, **options: Any) -> Tensor:
    """`torch.tensor`, which fills what is on the CPU alone."""
    made = _REAL_TENSOR(data, **options)
    return made if device is None else made.to(device)


def _indexed(hardware: Hardware) -> torch.device:
    """`Hardware.torch_device` with its index."""
    return torch.device("cuda", 0) if hardware.device == "cuda" else torch.device(hardware.device)


def _moved(module: nn.Module, device: torch.device | str) -> nn.Module:
    """`Module.to` with new parameters, tied ones still tied: the storage of a fake tensor cannot be exchanged."""
    parameters = {value: nn.Parameter(value.detach().to(device), value.requires_grad) for value in module.parameters()}
    buffers = {value: value.to(device) for value in module.buffers()}
    for part in module.modules():
        for name, value in part._parameters.items():
            part._parameters[name] = None if value is None else parameters[value]
        for name, value in part._buffers.items():
            part._buffers[name] = None if value is None else buffers[value]
    return module


def _attention(on_cpu):
    """A stand-in for torch's choice of a fused kernel: flash attention in half precision without a mask."""

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options) -> Tensor:
        if query.device.type != "cuda":
            return on_cpu(query, key, value, attn_mask=attn_mask, **options)
        if torch.is_autocast_enabled("cuda"):  # which casts what this function is given
            dtype = torch.get_autocast_dtype("cuda")
            query, key, value = (each.to(dtype) for each in (query, key, value))
            attn_mask = attn_mask if attn_mask is None or attn_mask.dtype is torch.bool else attn_mask.to(dtype)
        assert query.dtype == key.dtype == value.dtype
        dropout, is_causal = options.get("dropout_p", 0.0), options.get("is_causal", False)
        groups = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(groups, 1) if groups > 1 else each for each in (key, value))
        if attn_mask is None and query.dtype in (torch.bfloat16, torch.float16):
            return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout, is_causal)[0]
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            attn_mask = torch.zeros(attn_mask.shape, dtype=query.dtype, device=query.device)
        if attn_mask is not None:
            attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, torch.is_grad_enabled(), dropout, is_causal
        )[0]

    return attention
