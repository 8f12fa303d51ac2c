"""The forward pass of GPT-2 on a device: what `gpt2fast.kernels.transformer` is on a CPU, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import InputError
from gpt2fast.model.cuda.choice import CudaOutputs, Head
from gpt2fast.model.cuda.device import within_memory
from gpt2fast.model.cuda.kv_cache import CudaKVCache
from gpt2fast.model.cuda.operations import QUERIES, ForwardPlan, Operations
from gpt2fast.model.cuda.weights import CudaWeight

__all__ = ["CudaTransformer"]

T = TypeVar("T")
Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class CudaTransformer:
    """GPT-2 (Radford et al. 2019) on a device.

    `wte`: CudaWeight whose outputs are the token embeddings; `wpe`: float32 [n_ctx, n_embd]; `blocks`: for each layer a
    mapping of `ln_1`, `ln_2` to (weight, bias) and of `c_attn`, `c_proj`, `c_fc`, `mlp_c_proj` to CudaWeight, with
    `scale`, the factor of the attention scores; `ln_f`: (weight, bias); `head`: CudaWeight of the output head, often
    `wte` itself.  All arrays are on the device.
    """

    def __init__(
        self,
        operations: Operations,
        *,
        n_head: int,
        activation: str,
        epsilon: float,
        wte: CudaWeight,
        wpe: Any,
        blocks: Sequence[Mapping[str, Any]],
        ln_f: tuple[Any, Any],
        head: CudaWeight,
    ) -> None:
        self.n_layer, self.n_head = len(blocks), n_head
        self.n_ctx: int = wpe.shape[0]
        self.n_embd: int = wpe.shape[1]
        self.n_inner: int = blocks[0]["c_fc"].shape[1]
        self.vocab_size = head.shape[1]
        self._operations = operations
        self._device = operations.device
        self._activation, self._epsilon = activation, epsilon
        self._wte, self._wpe, self._blocks, self._ln_f, self._head = wte, wpe, blocks, ln_f, head

    def forward(
        self,
        cache: CudaKVCache,
        cache_rows: Integers,
        counts: Integers,
        ids: npt.NDArray[np.int32],
        outputs: Integers,
        *,
        num_threads: int = 1,
    ) -> CudaOutputs:
        """What is there after some of the new tokens, on the device; their keys and values are now in the cache.

        As `gpt2fast.backend.Network.forward`; `num_threads` is not used.  Raises InputError as that does, and
        DeviceMemoryError, both before anything is changed.
        """

        def run(plan: ForwardPlan) -> CudaOutputs:
            for x, bias in self._stages(plan, self.n_layer):  # noqa: B007  the last ones
                pass
            head = Head((*self._ln_f, self._epsilon), self._head)
            return CudaOutputs(self._operations, x, bias, plan.outputs, head)

        return self._pass(cache, cache_rows, counts, ids, outputs, run)

    def residual(
        self,
        cache: CudaKVCache,
        cache_rows: Integers,
        counts: Integers,
        ids: npt.NDArray[np.int32],
        outputs: Integers,
        stages: Integers,
        *,
        num_threads: int = 1,
    ) -> Floats:
        """The residual stream at `stages`, on the host: float32 [len(stages), len(outputs), n_embd].

        As `gpt2fast.backend.Network.residual`; errors as in `forward`.
        """
        last = 2 * self.n_layer + 1
        wanted = stages.tolist()

        def run(plan: ForwardPlan) -> Floats:
            found: list[Floats] = []
            for stage, (x, bias) in enumerate(self._stages(plan, min((wanted[-1] + 1) // 2, self.n_layer))):
                if stage in wanted and len(plan.outputs):
                    chosen = x.take(plan.outputs, axis=0)  # [outputs, n_embd]
                    found.append(self._device.download(chosen if bias is None else chosen + bias))
            if not len(plan.outputs):
                return np.empty((len(wanted), 0, self.n_embd), np.float32)
            if wanted[-1] == last:
                norm = (*self._ln_f, self._epsilon)
                h = self._operations.layer_norm_of(x, plan.outputs, bias, norm, exact=True)
                found.append(self._device.download(h))
            return np.stack(found)

        return self._pass(cache, cache_rows, counts, ids, outputs, run)

    def _pass(
        self,
        cache: CudaKVCache,
        cache_rows: Integers,
        counts: Integers,
        ids: npt.NDArray[np.int32],
        outputs: Integers,
        run: Callable[[ForwardPlan], T],
    ) -> T:
        """What `run` makes of the plan of a pass; the cache grows where that does not fail."""
        self._check(cache, cache_rows, counts)
        rows, sizes = cache_rows.tolist(), counts.tolist()
        blocks = cache.blocks_for(rows, sizes) * cache.block_nbytes
        what = f"{len(ids)} new tokens, {blocks / 2**20:,.1f} MiB in the cache and the rest for this pass,"

        def call() -> T:
            cache.reserve(rows, sizes)
            try:
                out = run(self._plan(cache, rows, sizes, ids, outputs))
            except BaseException:
                cache.give_up(rows)
                raise
            cache.grow(rows, sizes)
            return out

        return within_memory(self._device, what, blocks + self._pass_nbytes(len(ids), len(outputs)), call)

    def _check(self, cache: CudaKVCache, rows: Integers, counts: Integers) -> None:
        if not isinstance(cache, CudaKVCache) or cache.device is not self._device:
            raise InputError(f"the cache was made for a model on another device than {self._device.name}")
        if (cache.n_layer, cache.n_head, cache.head_dim * cache.n_head) != (self.n_layer, self.n_head, self.n_embd):
            raise InputError("the cache was made for a model of another shape")
        if cache.storage is not self._operations.storage:
            raise InputError(f"the cache was made for a model in another dtype than {self._operations.dtype}")
        lengths, limit = cache.lengths, min(cache.capacity, self.n_ctx)
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            cache.check_row(row)
            if lengths[row] + count > limit:
                raise InputError(
                    f"row {row} of the cache holds {lengths[row]} tokens and would hold {lengths[row] + count}; "
                    f"the limit is {limit}"
                )

    def _pass_nbytes(self, tokens: int, outputs: int) -> int:
        """Bytes that exist at the same time, at most, during a pass and while its logits are made; activations count as
        float32, which is a little much."""
        inside = tokens * (self.n_embd + max(5 * self.n_embd, self.n_embd + 2 * self.n_inner))
        return 4 * max(inside, tokens * self.n_embd + outputs * (self.n_embd + self.vocab_size))

    def _plan(
        self,
        cache: CudaKVCache,
        rows: list[int],
        counts: list[int],
        ids: npt.NDArray[np.int32],
        outputs: Integers,
    ) -> ForwardPlan:
        """The plan of a pass in which row `rows[s]` of the cache grows by the next `counts[s]` of `ids`."""
        lengths = cache.lengths
        positions = np.concatenate([np.arange(lengths[r], lengths[r] + n) for r, n in zip(rows, counts, strict=True)])
        texts = np.repeat(np.arange(len(rows)), counts)
        tiles, first = [], 0
        for text, (row, count) in enumerate(zip(rows, counts, strict=True)):
            for start in range(0, count, QUERIES):
                tiles.append((first + start, min(QUERIES, count - start), lengths[row] + start, text))
            first += count
        # One transfer for everything that a pass is told.
        parts = [np.asarray(part, np.int64) for part in (ids, positions, texts, tiles, cache.tables(rows), outputs)]
        told = self._device.upload(np.concatenate([part.ravel() for part in parts]))
        ends = np.cumsum([part.size for part in parts]).tolist()
        return ForwardPlan(
            *(told[end - part.size : end].reshape(part.shape) for end, part in zip(ends, parts, strict=True))
        )

    def _stages(self, plan: ForwardPlan, n_layer: int) -> Iterator[tuple[Any, Any]]:
        """The residual stream [T, n_embd], and a bias that is still to be added to it, or None: of the embeddings, and
        after attention and MLP of each layer up to `n_layer`."""
        do = self._operations
        x = do.embed(self._wte.matrix.data, self._wpe, plan)  # [T, n_embd]
        bias = None
        yield x, bias
        for layer, block in enumerate(self._blocks[:n_layer]):
            h = do.layer_norm(x, bias, (*block["ln_1"], self._epsilon))  # [T, n_embd]
            h = do.product(h, block["c_attn"].matrix)  # [T, 3 n_embd]
            h = do.attend(h, block["c_attn"].bias, plan, layer=layer, n_head=self.n_head, scale=block["scale"])
            x, bias = do.product(h, block["c_proj"].matrix, add_to=x), block["c_proj"].bias
            yield x, bias
            h = do.layer_norm(x, bias, (*block["ln_2"], self._epsilon))
            h = do.product(h, block["c_fc"].matrix)  # [T, n_inner]
            h = do.activate(h, block["c_fc"].bias, self._activation)
            x, bias = do.product(h, block["mlp_c_proj"].matrix, add_to=x), block["mlp_c_proj"].bias
            yield x, bias
