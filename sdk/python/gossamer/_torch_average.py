"""The method "average" for PyTorch: exact means of the gradients before each step, or of the models after every few.

All processes then hold the same model, to the bit. A process is *new* while its model may be another one: when it comes
or was left out, when an exchange has changed its model, when a step was skipped, and when the job's method was another
one. What a process contributes has a weight: 1, or, while it is new, 2^-40. Beside others of weight 1 that is less than
float32 can tell, so the values do not count; among new ones alone it is a scale like any other. NaN and infinity have the
weight 0.

In front of the values stands what all have to know: the weight, whether the process is new, and a digest of a part of its
state. If one is new, or the digests differ, all of them average their whole state once, the optimizer's too, with the
same weights, and hold the same bits again.

The gradients of larger models are averaged in buckets (_torch_buckets.py). The round then has the rest.
"""

from __future__ import annotations

import functools
import math
import time
import zlib
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple

import torch

from . import _library
from ._library import GossamerError
from ._shared import average_options
from ._torch_buckets import Buckets, split
from ._torch_flat import NEW_WEIGHT, Flat, local_part

if TYPE_CHECKING:
    from ._run import RunInfo
    from .torch import TorchRun

# The program is told that it waits for others after this many times its usual wait, within the two limits below. So it
# is not told at each step of a process that is always slow, and is soon told of one that has stopped.
TELL_AFTER_WAITS = 5
TELL_SOONEST_S = 10.0
TELL_LATEST_S = 30.0
LOOK_INTERVAL_S = 0.1
# The program is told after this many steps without finite values to average.
STEPS_LEFT_OUT = 10
# How long a call may wait, by what it waits for. After that too many processes have died, or the group that this process
# waits for no longer exists, and it begins anew.
STUCK_AFTER_S = {_library.WAIT_CONTRIBUTIONS: 20.0, _library.WAIT_ENTRY: 20.0, _library.WAIT_VALUES: 300.0}
# The state is averaged under a name of its own. If some of the members are still missing after this time, one has died,
# and all of them try again.
STATE_PATIENCE_S = {_library.WAIT_MEMBERS: 5.0, **STUCK_AFTER_S}
# One round in DIGEST_EVERY compares a digest of one tensor in DIGEST_PARTS.
DIGEST_EVERY = 4
DIGEST_PARTS = 8
OUTER_RATE = 0.7  # as in the exchange's outer steps (gossip/exchange/outer.hpp)
# Processes of a round that change the parameters they train wait for each other under the new name for this long, or for
# this many times their usual wait.
MEET_AGAIN_S = 5.0
MEET_AGAIN_WAITS = 2
# The program is told after this many rounds beside processes that average other gradients.
ROUNDS_APART = 20
# How many numbers of a parameter group, such as its learning rate, are averaged. It is the same for all optimizers, so
# that processes with different optimizers meet, and find that out.
GROUP_NUMBERS = 8
# Two numbers that are no farther apart than this share may be one number, before and after it was rounded to float32.
ROUNDING = 1e-6
# A process is told if one of these numbers is not the others', by more than this share.
NUMBERS_TOLERANCE = 0.05
# The names under which gradients and models are averaged.
GRADIENTS = "gradients"
MODELS = "models"


class _MethodChanged(Exception):
    """The job is averaged in another way now."""


class _Stuck(Exception):
    """The others do not go on without somebody who does not come back."""


def _is_over(found: _library.AverageInfo, waited_s: float, limits: Dict[int, float]) -> bool:
    return waited_s > limits.get(found.waits_for, math.inf)


class _Patience:
    """For what the processes of a round average together: it ends if one of them does not come."""

    def __init__(self, run: TorchRun):
        self._run = run
        self.met_others = False  # that average as many numbers
        self.others_differ = False  # some do not

    def __call__(self, found: _library.AverageInfo, waited_s: float) -> None:
        self.met_others = self.met_others or (found.waits_for == _library.WAIT_MEMBERS and found.members > 1)
        self.others_differ = bool(found.differs)
        if _is_over(found, waited_s, STATE_PATIENCE_S):
            raise TimeoutError(self._run._last_error())


def _order(run: TorchRun) -> Dict[int, int]:
    """The places of the tensors in the model, by their ids. Optimizers may list them in any order."""
    return {id(place.holder.get(place.key)): index for index, place in enumerate(run._places)}


def _trained(order: Dict[int, int], optimizer: torch.optim.Optimizer) -> List[torch.Tensor]:
    """The parameters that are trained, in the order of the model, which is the same at all processes."""
    tensors = [tensor for group in optimizer.param_groups for tensor in group["params"] if tensor.requires_grad]
    return sorted(tensors, key=lambda tensor: order.get(id(tensor), len(order)))


def _layout_of(run: TorchRun, order: Dict[int, int], optimizer: torch.optim.Optimizer) -> int:
    """A digest of which parameters are trained, and in which groups. 0: all parameters of the model, in one group."""
    groups = [sorted((order.get(id(t), -1), t.requires_grad) for t in group["params"]) for group in optimizer.param_groups]
    params = [index for index, place in enumerate(run._places) if place.role == "param"]
    if groups == [[(index, True) for index in params]]:
        return 0
    return zlib.crc32(repr(groups).encode())


class _GroupNumbers:
    """The numbers of an optimizer's parameter groups: learning rates, betas, weight decay. Schedules may be a few steps
    apart at the processes, so each step is made with the mean, and the models stay the same to the bit."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._places: List[Optional[Tuple[Dict[str, Any], str, Optional[int]]]] = []
        values: List[float] = []
        for group in optimizer.param_groups:
            found = list(self._of(group, optimizer.defaults))[:GROUP_NUMBERS]
            missing = GROUP_NUMBERS - len(found)
            self._places += [place for place, _ in found]
            self._places += [None] * missing
            values += [value for _, value in found] + [0.0] * missing
        self.values = torch.tensor(values, dtype=torch.float64)

    @staticmethod
    def _of(group: Dict[str, Any], defaults: Iterable[str]) -> Iterable[Tuple[Tuple[Dict[str, Any], str, Optional[int]], float]]:
        for key in sorted(defaults):
            value = group.get(key)
            items = value if isinstance(value, (tuple, list)) else [value]
            for index, item in enumerate(items):
                is_number = isinstance(item, (int, float)) and not isinstance(item, bool)
                if is_number or (isinstance(item, torch.Tensor) and item.numel() == 1):
                    yield (group, key, index if items is value else None), float(item)

    def differing(self, means: List[float], tolerance: float) -> List[str]:
        """In words, those that are not the mean."""
        return [
            f"{place[1]} is {own:g} here and {mean:g} in the mean"
            for place, own, mean in zip(self._places, self.values.tolist(), means)
            if place is not None and not math.isclose(own, mean, rel_tol=tolerance)
        ]

    def use(self, means: List[float]) -> Callable[[], None]:
        """Puts the means in their places. Returns what undoes that. Means are rounded to float32, so numbers that differ by
        rounding alone stay, but not learning rates: with schedules those may have small differences everywhere."""
        before: List[Tuple[Dict[str, Any], str, Any]] = []
        for place, own, mean in zip(self._places, self.values.tolist(), means):
            if place is None or math.isclose(own, mean, rel_tol=0 if place[1] == "lr" else ROUNDING):
                continue
            group, key, index = place
            value = group[key]
            before.append((group, key, value))
            if index is not None:
                group[key] = type(value)(mean if at == index else item for at, item in enumerate(value))
            else:
                group[key] = torch.full_like(value, mean) if isinstance(value, torch.Tensor) else mean

        def undo() -> None:
            for group, key, value in reversed(before):
                group[key] = value

        return undo


class _State:
    """The model, and what the optimizer keeps for each parameter and of its settings, in an order that all processes have.
    `tensors` can be averaged. For whole numbers they are copies, which take() puts back."""

    def __init__(self, run: TorchRun, optimizer: torch.optim.Optimizer):
        self.tensors = run._averaged_tensors()
        optimized = len(self.tensors)
        self._copies: List[Tuple[torch.Tensor, Dict[str, Any], str]] = []
        for parameter in _trained(_order(run), optimizer):
            kept: Dict[str, Any] = optimizer.state.get(parameter, {})
            for name in sorted(kept):
                self._add(kept, name)
        # These tensors must be the same at all processes. Buffers are not among them, because they follow each
        # process's own data until the next gradients are averaged.
        self._compared = run._averaged_tensors("param") + self.tensors[optimized:]
        for group in optimizer.param_groups:
            self._add(group, "lr")

    def _add(self, holder: Dict[str, Any], name: str) -> None:
        value = holder.get(name)
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 1:
            self.tensors.append(local_part(value))
        elif isinstance(value, (int, float, torch.Tensor)):
            copy = torch.as_tensor(value).detach().to("cpu", torch.float64)
            self._copies.append((copy, holder, name))
            self.tensors.append(copy)

    def take(self, from_others: bool) -> None:
        """Learning rates only `from_others`, and not if they differ by rounding alone."""
        for copy, holder, name in self._copies:
            value = holder[name]
            if name == "lr" and (not from_others or math.isclose(float(copy), float(value), rel_tol=ROUNDING)):
                continue
            whole = not (value.is_floating_point() if isinstance(value, torch.Tensor) else isinstance(value, float))
            if whole or name == "step":  # a count of steps may be kept as a float
                copy.round_()
            if isinstance(value, torch.Tensor):
                value.copy_(copy)
            else:
                holder[name] = type(value)(copy.item())

    def digest(self, part: int) -> int:
        """Below 251, of a part of the tensors."""
        total = 0
        for tensor in self._compared[part % DIGEST_PARTS :: DIGEST_PARTS]:
            words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
            total += int(tensor.reshape(-1).view(words).sum(dtype=torch.int64))
        return total % 251


def _nothing() -> None:
    pass


class ExactAverages:
    """What a run of a PyTorch model averages. The run owns this, so each method is given it. Call them with
    torch.no_grad()."""

    def __init__(self) -> None:
        self._averaged: Optional[str] = None  # GRADIENTS or MODELS, by the job's settings
        self._codec = ""  # how gradients travel
        self._name: Optional[str] = None  # the name of the average
        self._layout = 0  # of what is averaged under the name
        self._of = 0  # contributions to the last round
        self._expected = 0  # contributions to the first round under another name; 0: as many as the settings want
        self._flat: Optional[Flat] = None
        self._sizes: Optional[List[int]] = None  # numbers of elements of the gradients
        self._buckets: Optional[Buckets] = None  # the buckets of a large model's gradients
        self._new = True
        self._round = 0
        self._newcomers: Optional[Tuple[int, int]] = None  # the round that found new processes, and its contributions
        self._look_at_s = 0.0  # the time of the next look at the settings
        self._corrections = 0  # RunInfo.corrections as last seen
        self._has_gradients = False  # the gradients of the next step are averaged already
        self._steps = 0  # since the models were averaged
        self._numbers: Optional[List[float]] = None  # the means of the optimizer's numbers, for the next step
        self._undo_numbers: Callable[[], None] = _nothing
        self._rounds_apart = 0  # rounds beside processes that average other gradients
        self._told: Set[str] = set()  # what the program has been warned of
        self._alone_with_state = 0  # times in a row that no other process had as many numbers as this one
        self._left_out = 0  # rounds in a row that this process had no numbers for
        self._usual_wait_s = TELL_LATEST_S / TELL_AFTER_WAITS  # the usual wait for others; at first a guess
        self._anchor: Optional[torch.Tensor] = None  # the model after the last outer step
        self._momentum: Optional[torch.Tensor] = None

    def average_gradients(self, run: TorchRun, optimizer: torch.optim.Optimizer) -> None:
        """Before a step of the optimizer, unless the method is another one. The model's buffers, such as batch-norm
        statistics, are averaged, too."""
        if self._follow(run) != GRADIENTS:
            return
        if self._has_gradients:  # this process skipped the step for them, and others may not have
            self._new = True
        if isinstance(optimizer, torch.optim.LBFGS):
            raise GossamerError("GOSSAMER_UNSUPPORTED", "LBFGS cannot average gradients: it decides by local losses")
        order = _order(run)
        parameters = _trained(order, optimizer)
        gradients = [None if p.grad is None else local_part(p.grad) for p in parameters]
        if any(gradient is not None and gradient.is_sparse for gradient in gradients):
            raise GossamerError("GOSSAMER_UNSUPPORTED", "sparse gradients cannot be averaged: make layers with sparse=False")
        self._look_at_others(run, parameters)
        buffers = run._averaged_tensors("buffer")
        # If no process has a gradient for a parameter, the parameter keeps none.
        present = torch.tensor([float(gradient is not None) for gradient in gradients])
        numbers = _GroupNumbers(optimizer)
        mean_present, mean_numbers = torch.empty_like(present), torch.empty_like(numbers.values)
        self._rename(run, GRADIENTS, _layout_of(run, order, optimizer))
        codec = run.info().average_codec
        sizes = [local_part(p).numel() for p in parameters]
        exact = [tensor.numel() for tensor in [*buffers, present, numbers.values]]
        in_buckets = self._buckets_for(run, sizes)
        flat = self._flat_for(exact if in_buckets else exact + sizes)
        # All processes that are not new have the same number for the last round, so they take the same part.
        part, look = divmod(self._round, DIGEST_EVERY)
        digest = _State(run, optimizer).digest(part) if look == 0 else 0
        apart = repeats = False

        def fill() -> None:
            flat.put([*buffers, present, numbers.values, *([] if in_buckets else gradients)])
            flat.describe(self._new, digest, apart, repeats)

        while True:
            apart = in_buckets is not None and not self._begin_buckets(run, in_buckets, parameters, codec)
            found = self._mean(run, flat, fill, codec, Flat.HEAD + sum(exact), digest, repeats)
            if found is None:
                return
            self._has_gradients = True
            flat.give([*buffers, mean_present, mean_numbers])
            for parameter, share in zip(parameters, mean_present.tolist()):
                if share > 0 and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            gradients = [None if p.grad is None else local_part(p.grad) for p in parameters]
            if in_buckets is None:
                flat.give([None] * len(exact) + gradients)
                break
            if self._finish_buckets(run, in_buckets, found, flat.some_are_apart, gradients):
                break
            repeats = not self._new
        if not bool(torch.isfinite(mean_numbers).all()):  # no process has finite values
            return
        means: List[float] = mean_numbers.tolist()
        self._numbers = means
        if differing := numbers.differing(means, NUMBERS_TOLERANCE):
            self._tell(
                run,
                "numbers",
                f"the optimizers of the processes differ ({', '.join(differing)}), and each step is made with the mean: give all "
                "the same, and let schedules follow run.global_clock",
            )

    def _look_at_others(self, run: TorchRun, parameters: List[torch.Tensor]) -> None:
        """Warns of gradients that another optimizer takes."""
        covered = {id(parameter) for parameter in parameters}
        tensors = [(place.name, place.holder.get(place.key)) for place in run._places if place.role == "param"]
        others = [name for name, one in tensors if id(one) not in covered and getattr(one, "grad", None) is not None]
        if others:
            self._tell(
                run,
                "others",
                f"the optimizer that was attached lacks {len(others)} of the parameters with gradients, such as '{others[0]}', so "
                "these gradients are not averaged. If another optimizer updates them, the processes' models drift apart: attach "
                "one optimizer of all parameters (they may be in several groups), or average the models "
                "(settings={'average_steps': 8}). If none does, freeze them: requires_grad_(False)",
            )

    def before_step(self, run: TorchRun, optimizer: torch.optim.Optimizer) -> None:
        self._undo_numbers()
        if not self._has_gradients:
            self.average_gradients(run, optimizer)
        if self._numbers is not None:
            self._undo_numbers = _GroupNumbers(optimizer).use(self._numbers)

    def after_step(self, run: TorchRun, optimizer: torch.optim.Optimizer) -> None:
        self._undo_numbers()
        self._undo_numbers, self._numbers = _nothing, None
        self._has_gradients = False
        if self._newcomers is not None:
            state, is_new = _State(run, optimizer), self._new
            number, of = self._newcomers
            weight = self._share(run, state.tensors)
            if weight is not None:
                if self._buckets is not None:
                    self._buckets.epoch = (number, of)
                state.take(from_others=is_new and weight > 2 * NEW_WEIGHT)
                run._tensors_changed()
        if self._averaged == GRADIENTS or self._follow(run) != MODELS:
            return
        self._steps += 1
        if self._steps >= run.info().average_steps:
            self._steps = 0
            was_new = self._new  # its values did not count, and are replaced by those of the others
            averaged = self._average_models(run)
            run._tensors_changed()
            if averaged and not was_new:
                run._models_averaged()

    def leave(self, run: TorchRun) -> None:
        """The process takes part no more, and others do not wait for it."""
        if self._name is not None and not run.closed:
            run._leave_average(self._name.encode())
        self._name, self._of, self._expected = None, 0, 0
        if self._buckets is not None:
            self._buckets.close(run)
        self._averaged = self._flat = self._sizes = self._buckets = self._newcomers = self._anchor = self._momentum = None
        self._new = True
        self._has_gradients = False
        self._numbers = None

    def _rename(self, run: TorchRun, name: str, layout: int = 0) -> None:
        """Those that took part in a round and then train other parameters meet again, with another layout."""
        if self._name is not None and (self._name, self._layout) != (name, layout):
            run._leave_average(self._name.encode())
            self._expected = self._of
            self._rounds_apart = 0
        self._name, self._layout = name, layout

    def _follow(self, run: TorchRun) -> Optional[str]:
        """What the job's settings want to be averaged."""
        # If nothing is averaged, not every step looks, because looking would slow down short steps.
        if self._averaged is None and time.monotonic() < self._look_at_s:
            return None
        self._look_at_s = time.monotonic() + LOOK_INTERVAL_S
        info = run.info()
        # A daemon that has gone away may only be restarting. The next average waits for it a while.
        wanted = _wanted(info) if info.attached else (self._averaged, self._codec)
        if wanted != (self._averaged, self._codec):
            if wanted[0] is not None:
                run._check_method()
            # The mean of infinity and other values is no finite number, so no process would get a mean.
            if wanted[0] is not None and (infinite := run._infinite_buffers()):
                raise GossamerError(
                    "GOSSAMER_UNSUPPORTED",
                    f"the buffer '{infinite[0]}' holds infinity, and has no exact mean: if it is a constant, such as a mask, "
                    f"leave it out with roles={{'{infinite[0]}': 'local'}}",
                )
            self.leave(run)
            self._averaged, self._codec = wanted
        if info.corrections != self._corrections:
            self._corrections = info.corrections
            self._new = True
        return self._averaged

    def _flat_for(self, sizes: List[int]) -> Flat:
        if self._flat is None or self._flat.sizes != sizes:
            self._flat = Flat(sizes)
        return self._flat

    def _buckets_for(self, run: TorchRun, sizes: List[int]) -> Optional[Buckets]:
        if self._sizes != sizes:
            if self._buckets is not None:
                self._buckets.close(run)
                self._new = True
            self._sizes = sizes
            buckets = split(sizes)
            self._buckets = Buckets(sizes, buckets) if buckets else None
        return self._buckets

    def _begin_buckets(self, run: TorchRun, buckets: Buckets, parameters: List[torch.Tensor], codec: str) -> bool:
        if self._new:
            buckets.leave(run)
        buckets.follow(run, parameters, codec)
        return buckets.begin_rest(run)

    def _finish_buckets(
        self,
        run: TorchRun,
        buckets: Buckets,
        found: _library.AverageInfo,
        some_are_apart: bool,
        gradients: List[Optional[torch.Tensor]],
    ) -> bool:
        """What has become of the buckets, by the round that all processes have. False: a process has died since the round,
        so all that are left make another one for this step. Buckets that all had are means by then, and stay the same."""
        same = self._newcomers is None and not self._new
        if not same or buckets.epoch is None or buckets.epoch[1] != found.of:
            buckets.leave(run)
        try:
            if buckets.epoch is not None:
                buckets.finish(run, not some_are_apart, _Patience(run))
                if not some_are_apart:
                    self._left_out = 0
            if buckets.epoch is None or some_are_apart:
                self._average_together(run, found, gradients)
        except (TimeoutError, GossamerError) as error:
            if isinstance(error, GossamerError):
                if error.status != "GOSSAMER_NO_DAEMON":
                    raise
                self._new = True
            buckets.leave(run)
            self._newcomers = None  # the next round tells of those that are left
            return False
        if same and buckets.epoch is None:
            buckets.epoch = (found.round, found.of)
        return True

    def _average_together(
        self, run: TorchRun, found: _library.AverageInfo, gradients: List[Optional[torch.Tensor]]
    ) -> None:
        """All that took part in the round average their gradients, without buckets."""
        assert self._sizes is not None
        flat = self._average_once(run, f"together.{found.round}", found.of, gradients, self._sizes)
        self._look_whether_left_out(run, flat, found)
        flat.take_mean()
        flat.give(gradients)

    def _look_whether_left_out(self, run: TorchRun, flat: Flat, found: _library.AverageInfo) -> None:
        """A gradient scaler makes a step now and then whose gradients are infinite; such a one is left out everywhere."""
        self._left_out = self._left_out + 1 if flat.is_left_out and found.of > 1 else 0
        if self._left_out == STEPS_LEFT_OUT:
            self._tell(
                run,
                "finite",
                f"what this process has to average has held NaN or infinity for {STEPS_LEFT_OUT} steps in a row, so it "
                "contributes nothing, and trains on with the others' mean: look at its data and its loss",
            )

    def _mean(
        self,
        run: TorchRun,
        flat: Flat,
        fill: Callable[[], None],
        codec: str = "f32",
        exact: int = 0,
        digest: int = 0,
        repeats: bool = False,
    ) -> Optional[_library.AverageInfo]:
        """Of what `fill` puts there. None: there is none, and this process goes on alone. `codec`, `exact`: see
        average_options(). `repeats`: this is a round more for the same step."""
        try:
            found = self._wait_for_mean(run, flat, fill, codec, exact)
        except _MethodChanged:
            self.leave(run)
            return None
        except GossamerError as error:
            if error.status != "GOSSAMER_NO_DAEMON":
                raise
            self.leave(run)
            self._tell(run, "progress", f"training goes on alone, until a daemon is back: {error}")
            return None
        self._told.discard("progress")
        if self._buckets is None:
            self._look_whether_left_out(run, flat, found)
        flat.take_mean()
        if flat.some_are_new or flat.only_some_repeat(found.of):
            self._newcomers = (found.round, found.of)
            # Others have got the means that this process has given up, and are a step ahead of it.
            self._new = self._new or (repeats and flat.only_some_repeat(found.of))
        elif not flat.all_have(digest):
            self._newcomers = (found.round, found.of)
            self._tell(run, "models", "the processes' models had become different ones; their mean goes on everywhere")
        self._rounds_apart += found.differs
        if self._rounds_apart == ROUNDS_APART:
            self._tell(
                run,
                "apart",
                "another process of this job trains other parameters, or has another model or other parameter groups in its "
                "optimizer, so the two are averaged apart: give all processes the same, or another job",
            )
        if found.joined:
            self._new = True  # this process was left out of rounds, so it contributes as a new one
        self._round, self._of, self._expected = found.round, found.of, 0
        return found

    def _wait_for_mean(
        self, run: TorchRun, flat: Flat, fill: Callable[[], None], codec: str, exact: int
    ) -> _library.AverageInfo:
        while True:
            fill()
            assert self._name is not None
            members = max(1, run.info().average_members, self._expected)
            options = average_options(self._name, members, codec=codec, exact=exact)
            options.layout = self._layout
            began = time.monotonic()
            try:
                found = run._average(
                    flat.pointer, flat.size, options, waits=functools.partial(self._waits, run, members), fill=fill
                )
                self._usual_wait_s += (time.monotonic() - began - self._usual_wait_s) / 8
                return found
            except _Stuck as stuck:
                if str(stuck):
                    self._tell(run, "progress", f"the processes that are left begin anew: {stuck}")

    def _waits(self, run: TorchRun, members: int, found: _library.AverageInfo, waited_s: float) -> None:
        info = run.info()
        if info.attached and _wanted(info) != (self._averaged, self._codec):
            raise _MethodChanged
        if self._expected and waited_s > max(MEET_AGAIN_S, MEET_AGAIN_WAITS * self._usual_wait_s):
            self._expected = 0
            self._tell(
                run,
                "trained",
                "other parameters are trained here than before, and not at all of the other processes: freeze, unfreeze and add "
                "them at all, before the same step",
            )
        if info.attached and max(1, info.average_members, self._expected) != members:
            raise _Stuck
        why = run._last_error()
        if _is_over(found, waited_s, STUCK_AFTER_S):
            raise _Stuck(why)
        if waited_s > min(max(TELL_AFTER_WAITS * self._usual_wait_s, TELL_SOONEST_S), TELL_LATEST_S):
            self._tell(run, "progress", f"a step waits for other processes: {why}")

    def _tell(self, run: TorchRun, about: str, message: str) -> None:
        """Once."""
        if about not in self._told:
            self._told.add(about)
            run._warn(f"job '{run._job}': {message}")

    def _average_once(
        self,
        run: TorchRun,
        name: str,
        of: int,
        tensors: Sequence[Optional[torch.Tensor]],
        sizes: List[int],
        patience: Optional[_Patience] = None,
    ) -> Flat:
        """The mean over the `of` processes of a round, which all call this. Raises TimeoutError if one does not come."""
        flat = Flat(sizes, often=False)
        flat.put(tensors)
        flat.describe(self._new)
        options = average_options(name, at_least=of)
        run._average(flat.pointer, flat.size, options, waits=patience or _Patience(run))
        run._leave_average(options.name)
        return flat

    def _share(self, run: TorchRun, state: List[torch.Tensor]) -> Optional[float]:
        """All that took part in the round that has found new ones average their state. Returns the mean weight; None: not
        all have come, or nobody has values."""
        assert self._newcomers is not None
        (number, of), self._newcomers = self._newcomers, None
        patience = _Patience(run)
        try:
            flat = self._average_once(run, f"state.{number}", of, state, [tensor.numel() for tensor in state], patience)
        except (TimeoutError, GossamerError) as error:
            if patience.others_differ:
                why = f"the processes have different optimizers, or models; give all of them the same: {error}"
                # If several processes have the same optimizer, they go on, and only the one that differs stops. All
                # enter together after a round, so a process that is alone twice is the one that differs.
                self._alone_with_state = 0 if patience.met_others else self._alone_with_state + 1
                if self._alone_with_state == 2:
                    raise GossamerError("GOSSAMER_BAD_ARGUMENT", f"job '{run._job}': {why}") from None
                self._tell(run, "state", why)
            if isinstance(error, GossamerError) and error.status != "GOSSAMER_NO_DAEMON":
                raise
            self._new = True  # a process has died; the next round counts this one as new again
            return None
        weight = flat.take_mean()
        if weight == 0:
            return None
        flat.give(state)
        self._new = False
        return weight

    def _average_models(self, run: TorchRun) -> bool:
        """Whether the model is now the mean of those of all, or an outer step from it."""
        self._rename(run, MODELS)
        tensors = run._averaged_tensors()
        flat = self._flat_for([tensor.numel() for tensor in tensors])

        def fill() -> None:
            flat.put(tensors)
            flat.describe(self._new)

        if self._mean(run, flat, fill) is None:
            return False
        momentum = run.info().outer_momentum
        if momentum == 0:
            self._newcomers, self._new = None, False  # all processes have the same model, which is the whole state
            flat.give(tensors)
            return True
        self._outer_step(flat.values, momentum)
        flat.give(tensors)
        if self._newcomers is not None:
            assert self._momentum is not None
            self._share(run, [*tensors, self._momentum])
            flat.put(tensors)
        self._anchor = flat.values.clone()
        return True

    def _outer_step(self, model: torch.Tensor, momentum: float) -> None:
        if self._momentum is None:
            self._momentum = torch.zeros_like(model)
        if self._anchor is not None:
            self._momentum.mul_(momentum).add_(model - self._anchor)
        model.add_(self._momentum, alpha=OUTER_RATE * momentum)


def _wanted(info: RunInfo) -> Tuple[Optional[str], str]:
    """What the job's settings want to be averaged, and how gradients travel."""
    averaged = None if info.method != "average" else GRADIENTS if info.average_steps <= 1 else MODELS
    return averaged, info.average_codec
