"""A network in which functions are called: what stands in the place of the plain one while there are hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import InputError
from gpt2fast.model.backend import CpuNetwork, CpuOutputs
from gpt2fast.model.hooks.functions import Functions, HookPoint, Reader
from gpt2fast.model.hooks.steps import Steps, groups

if TYPE_CHECKING:
    from gpt2fast.kernels.kv_cache import KVCache

__all__ = ["HookedNetwork"]

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
T = TypeVar("T")


class HookedNetwork:
    """The `Network` of the same parameters that calls `functions` on its way.

    Its passes give what those of the plain network give, bit for bit where the functions change nothing.  A pass that
    fails, in a function as well, leaves its cache as it was.  Raises InputError for a network on a GPU.
    """

    plain: CpuNetwork
    functions: Functions

    def __init__(self, network: Any, functions: Functions) -> None:
        if isinstance(network, HookedNetwork):  # functions that were there before are called first
            before, network = network.functions, network.plain
            functions = {
                name: [*before.get(name, ()), *functions.get(name, ())] for name in before.keys() | functions.keys()
            }
        if not isinstance(network, CpuNetwork):
            raise InputError("hooks are called on a CPU only, and this model is on a GPU; load it with device='cpu'")
        self.plain = network
        self.functions = functions

    def forward(
        self,
        cache: KVCache,
        cache_rows: Integers,
        counts: Integers,
        ids: npt.NDArray[np.int32],
        outputs: Integers,
        *,
        num_threads: int = 1,
    ) -> CpuOutputs:
        """As `Network.forward`."""

        def run(steps: Steps) -> CpuOutputs:
            x = steps.layers(steps.embed(ids), 0, self.n_layer)
            return CpuOutputs(steps.final_norm(x, outputs), self.plain, num_threads)

        return self.run(cache, cache_rows, counts, run, num_threads=num_threads)

    def residual(
        self,
        cache: KVCache,
        cache_rows: Integers,
        counts: Integers,
        ids: npt.NDArray[np.int32],
        outputs: Integers,
        stages: Integers,
        *,
        num_threads: int = 1,
    ) -> Floats:
        """As `Network.residual`."""
        seen: dict[int, list[Floats]] = {stage: [] for stage in stages.tolist()}
        last = 2 * self.n_layer + 1

        def reader(stage: int) -> Reader:
            def see(array: Floats, point: HookPoint) -> None:
                seen[stage].append(array.reshape(-1, array.shape[-1]))

            return Reader(see)

        functions = dict(self.functions)
        for stage in seen:
            if 0 < stage < last:
                layer, half = divmod(stage - 1, 2)
                name = f"blocks.{layer}.hook_resid_{'post' if half else 'mid'}"
                functions[name] = [*functions.get(name, ()), reader(stage)]

        def run(steps: Steps) -> Floats:
            x = steps.embed(ids)
            if 0 in seen:
                seen[0].append(x)
            x = steps.layers(x, 0, min((max(seen) + 1) // 2, self.n_layer))
            if last in seen:
                seen[last].append(x)
            found = [np.concatenate(parts)[outputs] for parts in seen.values()]
            if last in seen:
                found[-1] = steps.final_norm(x, outputs)
            return np.stack(found)

        return HookedNetwork(self.plain, functions).run(cache, cache_rows, counts, run, num_threads=num_threads)

    def run(
        self,
        cache: KVCache,
        cache_rows: Integers,
        counts: Integers,
        walk: Callable[[Steps], T],
        *,
        num_threads: int,
    ) -> T:
        """What `walk` makes of the steps of a pass in which row `cache_rows[s]` grows by `counts[s]` tokens."""
        lengths = cache.lengths
        with self.plain.within():
            plan = self.plain.transformer.plan(cache, cache_rows, counts)
            try:
                texts = groups(cache_rows, counts, lengths)
                found = walk(Steps(self.plain.parts, self.plain.transformer, self.functions, plan, texts, num_threads))
                if not np.array_equal(cache.lengths, lengths):
                    raise InputError("a function of a hook has changed the cache of the pass that it was called in")
            except BaseException:
                for row in cache_rows.tolist():
                    cache.truncate(row, min(int(lengths[row]), int(cache.lengths[row])))
                raise
            plan.grow()
        return found

    @property
    def n_layer(self) -> int:
        """The number of layers."""
        return self.plain.transformer.n_layer
