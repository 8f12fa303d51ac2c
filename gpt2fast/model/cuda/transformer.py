"""The forward pass of GPT-2 on a device: what `gpt2fast.kernels.transformer` is on a CPU, operation by operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import InputError
from gpt2fast.model.cuda.choice import CudaLogits
from gpt2fast.model.cuda.device import within_memory
from gpt2fast.model.cuda.kv_cache import CudaKVCache
from gpt2fast.model.cuda.operations import QUERIES, ForwardPlan, Operations
from gpt2fast.model.cuda.weights import CudaWeight

__all__ = ["CudaTransformer"]

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
        wanted: Integers,
        *,
        logits: bool = True,
        stages: Sequence[int] | None = None,
        num_threads: int = 1,
    ) -> Floats | CudaLogits:
        """What the network says after some of the new tokens; their keys and values are now in the cache.

        As `gpt2fast.kernels.transformer.Transformer.forward`, whose arguments these are; `num_threads` is not used.
        Arguments and result are in the memory of the host; only logits stay on the device.  Raises InputError as that
        does, and DeviceMemoryError, both before anything is changed.
        """
        if not len(ids) or (stages is not None and not stages):
            return self._nothing(logits, stages)
        self._check(cache, cache_rows, counts)
        rows, sizes = cache_rows.tolist(), counts.tolist()
        blocks = cache.blocks_for(rows, sizes) * cache.block_nbytes
        what = f"{len(ids)} new tokens, {blocks / 2**20:,.1f} MiB in the cache and the rest for this pass,"
        size = blocks + self._pass_nbytes(len(ids), len(wanted))
        run = partial(self._forward, cache, rows, sizes, ids, wanted, logits, stages)
        return within_memory(self._device, what, size, run)

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

    def _pass_nbytes(self, tokens: int, wanted: int) -> int:
        """Bytes that exist at the same time, at most, during a pass; activations as float32, which is a little much."""
        inside = tokens * (self.n_embd + max(5 * self.n_embd, self.n_embd + 2 * self.n_inner))
        return 4 * max(inside, tokens * self.n_embd + wanted * (self.n_embd + self.vocab_size))

    def _forward(
        self,
        cache: CudaKVCache,
        rows: list[int],
        counts: list[int],
        ids: npt.NDArray[np.int32],
        wanted: Integers,
        logits: bool,
        stages: Sequence[int] | None,
    ) -> Floats | CudaLogits:
        cache.reserve(rows, counts)
        try:
            plan = self._plan(cache, rows, counts, ids, wanted)
            out = self._run(plan, logits, stages)
        except BaseException:
            cache.give_up(rows)
            raise
        cache.grow(rows, counts)
        return out

    def _plan(
        self,
        cache: CudaKVCache,
        rows: list[int],
        counts: list[int],
        ids: npt.NDArray[np.int32],
        wanted: Integers,
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
        parts = [np.asarray(part, np.int64) for part in (ids, positions, texts, tiles, cache.tables(rows), wanted)]
        told = self._device.upload(np.concatenate([part.ravel() for part in parts]))
        ends = np.cumsum([part.size for part in parts]).tolist()
        return ForwardPlan(
            *(told[end - part.size : end].reshape(part.shape) for end, part in zip(ends, parts, strict=True))
        )

    def _run(self, plan: ForwardPlan, logits: bool, stages: Sequence[int] | None) -> Floats | CudaLogits:
        """What is wanted of the plan's tokens: logits, final hidden states, or the residual stream at `stages`."""
        last = 2 * self.n_layer + 1  # the stage after the final norm, which logits are made of
        looked_at = (last,) if stages is None else stages
        found: list[Any] = []
        for stage, (x, bias) in enumerate(self._stages(plan, min((looked_at[-1] + 1) // 2, self.n_layer))):
            if stage in looked_at and len(plan.wanted):
                chosen = x.take(plan.wanted, axis=0)  # [wanted, n_embd]
                found.append(self._device.download(chosen if bias is None else chosen + bias))
        if not len(plan.wanted):
            return self._nothing(logits, stages)
        if looked_at[-1] == last:
            found.append(self._finish(x, bias, plan, logits=logits and stages is None))
        return found[0] if stages is None else np.stack(found)

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

    def _finish(self, x: Any, bias: Any, plan: ForwardPlan, *, logits: bool) -> Floats | CudaLogits:
        do = self._operations
        norm = (*self._ln_f, self._epsilon)
        h = do.layer_norm_of(x, plan.wanted, bias, norm, exact=not logits)  # [wanted, n_embd]
        return CudaLogits(do, do.product(h, self._head.matrix)) if logits else self._device.download(h)

    def _nothing(self, logits: bool, stages: Sequence[int] | None) -> Floats:
        if stages is not None:
            return np.empty((len(stages), 0, self.n_embd), np.float32)
        return np.empty((0, self.vocab_size if logits else self.n_embd), np.float32)
