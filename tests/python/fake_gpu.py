"""The fake GPU of the C library (tests/unit/sdk/fake_client_plugin.cpp) for tests in Python: tensors in host memory
become those of GPU 0, and streams are threads that a test can hold.

PyTorch itself knows nothing of it: as_pytorch_has_it() makes gossamer.torch take all tensors for the GPU's. PyTorch
then works at once and not on a stream, so call synchronize() before it touches memory that a pass may still write.
"""

from __future__ import annotations

import ctypes
from typing import Any, Iterable
from unittest import mock


class FakeGpu:
    def __init__(self, path: str):
        self._plugin = ctypes.CDLL(path)
        self._plugin.fake_stream.restype = ctypes.c_void_p
        self._plugin.fake_launches.restype = ctypes.c_uint64
        self.stream: int = self.new_stream()  # the stream that trains

    def new_stream(self) -> int:
        return int(self._plugin.fake_stream())

    def adopt(self, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            self._plugin.fake_adopt(
                ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.numel() * tensor.element_size()), 0
            )

    def disown(self, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            self._plugin.fake_disown(ctypes.c_void_p(tensor.data_ptr()))

    def launches(self) -> int:
        return int(self._plugin.fake_launches())

    def hold(self, stream: int) -> None:
        self._plugin.fake_hold(ctypes.c_void_p(stream))

    def release(self, stream: int) -> None:
        self._plugin.fake_release(ctypes.c_void_p(stream))

    def synchronize(self) -> None:
        """Waits until the stream that trains has done all its work."""
        self._plugin.fake_synchronize(ctypes.c_void_p(self.stream))

    def as_pytorch_has_it(self) -> Any:
        """A context in which PyTorch's tensors are on the fake GPU."""
        import torch

        from gossamer import _torch_cuda

        return mock.patch.multiple(
            _torch_cuda,
            device_of=lambda tensor: torch.device("cuda", 0),
            raw_stream=lambda index: self.stream,
            is_capturing=lambda: False,
            order=lambda index, before: None,
        )
