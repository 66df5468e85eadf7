"""PyTorch's answers about the GPU that a model is trained on: where tensors are, and on which stream. Private to the
package; called by the thread that uses the run. Nothing here waits for the device.

A PyTorch for AMD's GPUs calls its devices cuda, too. Gossamer's library then finds no such GPU, and says so.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Callable, Iterable, Optional, Tuple

import torch

from ._library import GossamerError

NO_DEVICE = "GOSSAMER_NO_DEVICE"


def device_of(tensor: torch.Tensor) -> torch.device:
    return tensor.device


def _slow_raw_stream(index: int) -> int:
    pointer: int = torch.cuda.current_stream(index).cuda_stream
    return pointer


# PyTorch's own generated code calls this function at each kernel. It takes 0.1 µs; the public function takes 2 µs.
raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _slow_raw_stream)


def is_capturing() -> bool:
    """Whether launches are now recorded in a CUDA graph instead of executed."""
    capturing: bool = torch.cuda.is_current_stream_capturing()
    return capturing


def order(index: int, before: int) -> None:
    """Later launches on the current stream will come after the earlier launches on the stream `before`."""
    # PyTorch would take a stream of 0 to mean no stream, and make a new one.
    earlier = torch.cuda.ExternalStream(before, device=index) if before else torch.cuda.default_stream(index)
    torch.cuda.current_stream(index).wait_stream(earlier)


def common_device(tensors: Iterable[Tuple[str, torch.Tensor]]) -> Optional[torch.device]:
    """The device of these tensors, given by name; None if there are none. Refuses, by name, tensors without values, and
    tensors that are on another device than the first."""
    first: Optional[Tuple[str, torch.device]] = None
    for name, tensor in tensors:
        device = device_of(tensor)
        if device.type == "meta":
            raise _refuse(name, "is on meta, where it has no values: move the model with model.to_empty() and initialise it")
        if first is None:
            first = (name, device)
        elif device != first[1]:
            raise _refuse(name, _elsewhere(device, *first))
    return None if first is None else first[1]


def _elsewhere(device: torch.device, name: str, others: torch.device) -> str:
    if device.type == others.type == "cuda":
        return (
            f"is on {device}, but '{name}' is on {others}: a run's tensors are on one GPU. Train with one process for each"
            " GPU (gossamerctl run -- python3 train.py starts them), or attach what each GPU holds as a job of its own"
        )
    return (
        f"is on {device}, but '{name}' is on {others}: all that is averaged must be in one place. Move the model with "
        f"model.to('{others if others.type == 'cuda' else device}'), or give the tensor the role local"
    )


def _refuse(name: str, reason: str) -> GossamerError:
    return GossamerError("GOSSAMER_UNSUPPORTED", f"tensor '{name}' {reason}")


class Pinned:
    """Page-locks host memory while it exists, so that copies between it and a GPU are fast, and nobody waits for them.
    Where that is not possible they are right all the same."""

    def __init__(self, memory: torch.Tensor, gpu: torch.device):
        if int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel() * memory.element_size(), 0)) == 0:
            weakref.finalize(self, _unpin, memory, gpu).atexit = False
        else:
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=gpu)  # clears the error that the runtime remembers


def _unpin(memory: torch.Tensor, gpu: torch.device) -> None:
    torch.cuda.synchronize(gpu)  # copies may be under way
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())


class TrainingStream:
    """Follows the current stream of a GPU: a run launches after the program's launches there."""

    def __init__(self, index: int):
        self._index = index
        self.pointer = raw_stream(index)

    def moved(self) -> bool:
        """Whether the program now trains on another stream than at the last call. `pointer` is the new stream, which is
        then ordered after the former one. Refuses to launch into a CUDA graph."""
        if is_capturing():
            raise GossamerError(
                "GOSSAMER_UNSUPPORTED",
                "run.step() was called while a CUDA graph is captured, and would not be replayed with it: attach the "
                "model without the optimizer, and call run.step() after each graph.replay()",
            )
        pointer = raw_stream(self._index)
        if pointer == self.pointer:
            return False
        order(self._index, self.pointer)
        self.pointer = pointer
        return True
