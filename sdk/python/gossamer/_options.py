"""The keyword arguments that every attach(), and every callback that attaches, takes. gossamer.attach() documents them.

Only type checkers need typing_extensions, for Unpack; they bring it.
"""

from __future__ import annotations

from typing import Callable, Mapping, Optional, Sequence, Tuple, TypedDict, Union

from ._events import Event


class _Required(TypedDict):
    job: str


class AttachOptions(_Required, total=False):
    roles: Optional[Mapping[str, str]]
    wait: bool
    timeout_s: Optional[float]
    socket: Optional[str]
    fragment_elements: int
    step_budget_bytes: int
    initial_clock: Optional[int]  # None only for callbacks that can ask the trainer
    memory: str
    settings: Optional[Mapping[str, Union[str, int, float]]]
    on_event: Optional[Callable[[Event], None]]
    progress: Optional[bool]
    part: Optional[Tuple[int, int]]
    replica: Optional[str]
    slices: Optional[Mapping[str, Tuple[Sequence[int], Sequence[int]]]]
    correct_drift: bool


def check_options(options: AttachOptions) -> None:
    """Raises what Python raises for a wrong keyword argument."""
    unknown = sorted(set(options) - set(AttachOptions.__annotations__))
    if unknown:
        raise TypeError(f"attach() got an unexpected keyword argument '{unknown[0]}'")
    if "job" not in options:
        raise TypeError("attach() missing 1 required keyword-only argument: 'job'")
