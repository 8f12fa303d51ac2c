"""The GPT-2 network: token ids in, logits or hidden states out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import flag, whole_number
from gpt2fast._internal.threads import resolve_num_threads
from gpt2fast.checkpoint.adapters import AdaptedCheckpoint
from gpt2fast.checkpoint.config import Config
from gpt2fast.checkpoint.heads import LabelHead
from gpt2fast.checkpoint.names import expected_shapes
from gpt2fast.checkpoint.weights import DTYPES, Arrays, Checkpoint, PackedArrays
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.model.backend import (
    Backend,
    Cache,
    CacheDType,
    DType,
    Gemm,
    Network,
    Outputs,
    open_backend,
)
from gpt2fast.model.forward import PASS, Segment, arguments, checked_ids, checked_segments, run_passes
from gpt2fast.model.hooks import run as hooked_run
from gpt2fast.model.hooks.activation_cache import ActivationCache
from gpt2fast.model.hooks.functions import Hook, by_name
from gpt2fast.model.hooks.names import NameFilter, hook_names, selected
from gpt2fast.model.hooks.network import HookedNetwork
from gpt2fast.model.parameters import Parameters, Source, assemble

__all__ = ["DTYPES", "GPT2", "Cache", "Outputs"]

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]
Integers = npt.NDArray[np.int64]


class Origin(NamedTuple):
    """Where a model came from: the arguments of `GPT2.from_pretrained`, threads aside."""

    directory: str | Path
    adapter: str | Path | None
    options: dict[str, str | None]

    def absolute(self) -> Origin:
        """The same with paths that mean the same in every process of this machine."""
        adapter = None if self.adapter is None else os.path.abspath(self.adapter)
        return self._replace(directory=os.path.abspath(self.directory), adapter=adapter)


class GPT2:
    """A GPT-2 language model.

    Made by `from_pretrained` or `from_tensors`.  Calls take int token ids and give float32 arrays; a model can be used
    from several threads, a cache from one at a time.

    `dtype` says how the matrices are kept: "float32"; "bfloat16", half the memory, exact products and float32 sums;
    "int8" and "int4", a scale for each output and 64 inputs, with activations of 8 bits.  All else is float32.

    `device` says where: "cpu"; or "cuda" or "cuda:1", an NVIDIA GPU, through CuPy, which the extras `gpt2fast[cuda12x]`
    and `gpt2fast[cuda13x]` bring.  There `dtype` is "float32", "float16" or "bfloat16", cuBLAS multiplies, and results
    may differ in the last digits from one call to the next.

    `cache_dtype="bfloat16"` keeps the keys and values of texts in half the memory, and so reads long texts' sooner, at
    the price of some digits.  It is the default beside int8 and int4, "float32" beside the others; a GPU's cache is
    kept as its weights are.

    On a CPU with `gemm="panel"`, the default, the logits of a token are the same bit for bit however its text was cut
    into calls, whatever else was in the batch, however many threads ran and on whichever processor; see
    `gpt2fast.numerics_version`.  `gemm="blas"` multiplies with SciPy's BLAS instead: no repacking at load, and results
    that differ in the last digits from one call to the next.
    """

    def __init__(
        self,
        network: Network,
        parameters: Parameters,
        *,
        backend: Backend,
        num_threads: int | None = None,
        origin: Origin | None = None,
    ) -> None:
        #: The configuration, a `gpt2fast.Config`.
        self.config = parameters.config
        self.num_threads = resolve_num_threads(num_threads)
        #: How the matrices are kept: "float32", "float16", "bfloat16", "int8" or "int4".
        self.dtype = backend.dtype
        #: Where the model is: "cpu", or "cuda:" and a number.
        self.device = backend.device
        #: What multiplies: "panel", "blas" or, on a GPU, "cublas".
        self.gemm = backend.gemm
        self._backend = backend
        self._origin = origin
        self._network = network
        # The network in use: within `hooks` one that calls functions.
        self._active = network
        self._parameters = parameters

    @classmethod
    def from_pretrained(
        cls,
        directory: str | Path,
        *,
        adapter: str | Path | None = None,
        dtype: DType | None = None,
        device: Literal["cpu", "cuda"] | str = "cpu",
        num_threads: int | None = None,
        gemm: Gemm = "panel",
        cache_dtype: CacheDType | None = None,
    ) -> GPT2:
        """The model in `directory`: config.json with model.safetensors, or its shards and their index.

        Hugging Face's names and nanoGPT's are read, in float32, float16 or bfloat16, and kept as `dtype` says (default:
        as a packed model is packed, any other in float32); a config.json with `"bias": false` stands for a model
        without biases, as nanoGPT makes them.  An output head that is stored and differs from the embeddings is used,
        whatever config.json says.  `adapter`, a directory with a LoRA adapter as PEFT saves it, is merged into the
        weights in float32.

        Raises MissingFileError where a file is missing and InputError where a file is damaged or does not fit the
        configuration, naming every tensor concerned; OutOfMemoryError where there is no memory for the weights; of a
        GPU, MissingDependencyError without CuPy, DeviceError where it cannot be used, and DeviceMemoryError where the
        weights do not fit, with none of them left there.  Warns of tensors that belong to no language model, such as
        the value heads of reinforcement learning, which are left out.
        """
        options = {"dtype": dtype, "device": device, "gemm": gemm, "cache_dtype": cache_dtype}
        backend = _open_backend(options, num_threads)
        with ExitStack() as files:
            source: Checkpoint | AdaptedCheckpoint = files.enter_context(Checkpoint(directory))
            if source.packed and backend.gemm != "panel":
                raise InputError(f"{directory}: the weights are packed; gemm={backend.gemm!r} reads ordinary ones")
            if source.packed and dtype is None:
                backend = backend.with_dtype(source.packed)
            if source.packed not in (None, backend.dtype):
                packed = source.packed
                raise InputError(f"{directory}: the weights are packed as {packed}; load them with dtype={packed!r}")
            if adapter is not None:
                source = files.enter_context(AdaptedCheckpoint(cast("Checkpoint", source), adapter))
            return cls._load(source, backend, num_threads, Origin(directory, adapter, options))

    @classmethod
    def from_tensors(
        cls,
        config: Config,
        tensors: Mapping[str, npt.ArrayLike],
        *,
        dtype: DType | None = None,
        device: Literal["cpu", "cuda"] | str = "cpu",
        num_threads: int | None = None,
        gemm: Gemm = "panel",
        cache_dtype: CacheDType | None = None,
    ) -> GPT2:
        """The model made of arrays in memory, by their published names (`wte.weight`, `h.0.ln_1.bias` …).

        Raises InputError that names every array that is missing, unknown or of another shape.
        """
        if not isinstance(config, Config):
            raise InputTypeError(f"config is of type {type(config).__name__}; expected a Config")
        if not isinstance(tensors, Mapping) or not all(isinstance(name, str) for name in tensors):
            raise InputTypeError(
                f"tensors is of type {type(tensors).__name__}; expected a mapping from names to arrays"
            )
        options = {"dtype": dtype, "device": device, "gemm": gemm, "cache_dtype": cache_dtype}
        return cls._load(Arrays(config, tensors), _open_backend(options, num_threads), num_threads)

    @classmethod
    def _load(cls, source: Source, backend: Backend, num_threads: int | None, origin: Origin | None = None) -> GPT2:
        network, parameters = backend.load(
            partial(assemble, source, backend),
            shapes=expected_shapes(source.config),
            head_dim=source.config.head_dim,
        )
        return cls(network, parameters, backend=backend, num_threads=num_threads, origin=origin)

    def with_dtype(self, dtype: str) -> GPT2:
        """The same model with its matrices kept as another `dtype`; biases, norms and positions are shared.

        A model in fewer bits serves as a draft in speculative decoding.  Raises InputError for an unknown dtype.

        >>> import gpt2fast
        >>> gpt2fast.load("demo").model.with_dtype("int8").dtype
        'int8'
        """
        return self._load(self._parameters, self._backend.with_dtype(dtype), self._wanted_threads)

    def __copy__(self) -> GPT2:
        """A model of its own that shares the weights, which nothing changes."""
        return GPT2(
            self._network,
            self._parameters,
            backend=self._backend,
            num_threads=self._wanted_threads,
            origin=self._origin,
        )

    def __deepcopy__(self, memo: object) -> GPT2:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        """A model that came from a directory is pickled as its path, the options and a digest of the weights; another
        one with all its tensors."""
        threads = self._wanted_threads
        if self._origin is not None:
            return _load_again, (self._origin.absolute(), threads, self._parameters.digest())
        packed = self.gemm == "panel"
        options = {
            "dtype": self.dtype,
            "device": self.device,
            "gemm": "panel" if self.device != "cpu" else self.gemm,
            "cache_dtype": getattr(self._backend, "cache_dtype", None),
        }
        return _put_together, (self.config, self._parameters.tensors(packed=packed), packed, options, threads)

    @property
    def num_threads(self) -> int:
        """Threads that every call uses.  Raises InputError where it is set to what is no positive whole number."""
        return self._num_threads

    @num_threads.setter
    def num_threads(self, num_threads: int | None) -> None:
        self._num_threads = resolve_num_threads(num_threads)
        self._wanted_threads = num_threads

    def __repr__(self) -> str:
        c = self.config
        return (
            f"<GPT2 {self.num_parameters:,} parameters: n_layer={c.n_layer} n_head={c.n_head} n_embd={c.n_embd} "
            f"n_ctx={c.n_ctx} vocab_size={c.vocab_size} dtype={self.dtype!r} "
            f"gemm={self.gemm!r} "
            + (f"num_threads={self.num_threads}>" if self.device == "cpu" else f"device={self.device!r}>")
        )

    @property
    def cache_dtype(self) -> str:
        """How a new cache keeps keys and values: "float32", "float16" or "bfloat16"."""
        return self._backend.resolved_cache_dtype

    def sha256(self) -> bytes:
        """The SHA-256 of the sizes and of every value that the model computes with, 32 bytes.

        It is the same on every machine, and another one for each `dtype`; it does not depend on the files that the
        model was read from.  The page on compressed files says what exactly it is taken of.

        >>> import gpt2fast
        >>> gpt2fast.load("demo").model.sha256().hex()[:8]
        '93d66fe6'
        """
        return self._parameters.sha256

    @property
    def num_parameters(self) -> int:
        """The number of parameters; a head tied to the token embedding counts once."""
        return sum(int(np.prod(shape)) for shape in expected_shapes(self.config).values())

    @property
    def same_bits(self) -> bool:
        """Whether results are the same bit for bit on every machine: on a CPU, with gemm "panel"."""
        return self.device == "cpu" and self.gemm == "panel"

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the weights take as they are kept."""
        return self._parameters.nbytes

    def new_cache(self, batch: int = 1, capacity: int | None = None) -> Cache:
        """An empty cache for `batch` sequences of up to `capacity` tokens each (default: the model's context).

        Memory is taken as tokens come.  Raises InputError where the capacity is over the model's context, and
        OutOfMemoryError where the system would not have the memory for all of it.
        """
        limit = self.config.n_ctx
        batch = whole_number("batch", batch, least=1)
        if batch >= 1 << 31:
            raise InputError(f"batch is {batch}; expected less than 2**31")
        capacity = limit if capacity is None else whole_number("capacity", capacity, least=1)
        if capacity > limit:
            raise InputError(f"capacity is {capacity}; the model's context is {limit} tokens")
        config = self.config
        return self._backend.new_cache(
            n_layer=config.n_layer, n_head=config.n_head, head_dim=config.head_dim, batch=batch, capacity=capacity
        )

    def __call__(self, ids: npt.ArrayLike, cache: Cache | None = None, last_only: bool = False) -> Floats:
        """The logits after every token: float32 (T, vocab_size) for ids (T,), (B, T, vocab_size) for ids (B, T).

        With `last_only`, only those after the last token, (vocab_size,) or (B, vocab_size): much less work.  With
        `cache`, the ids continue what the cache holds, one cache row per row of ids, and join it.  Raises
        InputTypeError where ids are not integers, and InputError, before anything is computed, where they are outside
        the vocabulary, there are none to take the last of, or they would go past the context.

        >>> import gpt2fast
        >>> model = gpt2fast.load("demo").model
        >>> model([1, 2, 3]).shape, model([1, 2, 3], last_only=True).shape
        ((3, 4096), (4096,))
        """
        return self._apply(ids, cache, last_only, logits=True)

    def hidden_states(
        self,
        ids: npt.ArrayLike,
        cache: Cache | None = None,
        *,
        layers: Literal["all"] | int | Sequence[int] | None = None,
    ) -> Floats:
        """The hidden states after the final LayerNorm: float32 (T, n_embd) for ids (T,), (B, T, n_embd) for (B, T).

        What the head sees; embeddings of a text are often made of their mean or their last row.  With `cache`, the ids
        continue what it holds, as in a call.

        `layers` asks for those of other layers, counted as in transformers' `output_hidden_states`: 0 is the
        embeddings, i what the i-th of the n_layer layers puts out, n_layer and -1 the last one's after the final
        LayerNorm.  A number gives an array of the same shape; "all" or a list of numbers gives one with a dimension for
        the layers before all others.  Without a cache, layers that are not needed are not run.

        Raises as a call does, and InputError where there is no such layer.

        >>> import gpt2fast
        >>> lm = gpt2fast.load("demo")
        >>> ids = lm.tokenizer.encode("The king's daughter")
        >>> lm.model.hidden_states(ids).mean(axis=0).shape
        (256,)
        >>> lm.model.hidden_states(ids, layers="all").shape  # the embeddings and six layers
        (7, 4, 256)
        """
        n_layer = self.config.n_layer
        if layers is None:
            return self._apply(ids, cache, False)
        if isinstance(layers, str) and layers != "all":
            raise InputError(f"layers is {layers!r}; expected 'all', a number or a list of numbers")
        wanted = range(n_layer + 1) if isinstance(layers, str) else np.atleast_1d(np.asarray(layers, object)).tolist()
        for layer in wanted:
            if whole_number("layers", layer, least=-n_layer - 1) > n_layer:
                raise InputError(f"layers has {layer}; the model's hidden states have numbers from 0 to {n_layer}")
        numbers = [layer % (n_layer + 1) for layer in wanted]
        # A cache needs the keys and values of all layers.
        needed = sorted({*numbers, n_layer} if cache is not None else set(numbers))
        # The network's stages come by halves of layers.
        found = self._apply(ids, cache, False, stages=[2 * i + (i == n_layer) for i in needed])
        places = [needed.index(number) for number in numbers]
        return found[places[0] if isinstance(layers, (int, np.integer)) else places]

    def residual(self, ids: npt.ArrayLike, stage: int) -> Floats:
        """What flows between the halves of layers, float32 (T, n_embd) for ids (T,): at stage 0 the embeddings, at
        2 i + 1 their sum with what attention has added up to layer i, at 2 i + 2 that with its MLP's, at
        2 n_layer + 1 the final hidden states.

        Raises as a call does, and InputError where there is no such stage.

        >>> import gpt2fast
        >>> gpt2fast.load("demo").model.residual([1, 2, 3], stage=0).shape
        (3, 256)
        """
        if whole_number("stage", stage) > 2 * self.config.n_layer + 1:
            raise InputError(f"stage is {stage}; the model's last one is {2 * self.config.n_layer + 1}")
        array: Floats = self._apply(ids, None, False, stages=[stage])[0]
        return array

    def extend(
        self,
        cache: Cache,
        rows: Sequence[int],
        ids: Sequence[npt.ArrayLike],
        wanted: Sequence[int] | None = None,
    ) -> Floats:
        """The logits (len(rows), vocab_size) after the last of `ids[i]`, which continue row `rows[i]` of the cache.

        With `wanted`, those after the last `wanted[i]` of `ids[i]`, which may be none: (sum(wanted), vocab_size).  The
        rows may grow by different numbers of tokens, at least one each; nothing is padded.  Raises as a call does, and
        InputError where a row is named twice or more logits are wanted than there are ids.
        """
        _check_cache(cache)
        return self._run(cache, checked_segments(rows, ids, wanted, self.config.vocab_size), logits=True)

    def forward(
        self,
        cache: Cache,
        rows: Sequence[int],
        ids: Sequence[npt.ArrayLike],
        outputs: Sequence[int] | None = None,
        *,
        fwd_hooks: Iterable[Hook] = (),
    ) -> Outputs:
        """One pass: row `rows[i]` of the cache grows by `ids[i]`, and there are outputs after the last `outputs[i]` of
        them (default: one).

        What comes back is where the model computes until it is asked for: hidden states, logits, or what is made of
        logits a few rows at a time, chosen ids and measures.  Raises as `extend` does.

        `fwd_hooks` are functions that are called in this pass alone, as `hooks` explains them; raises as it does, too.

        >>> import gpt2fast
        >>> model = gpt2fast.load("demo").model
        >>> outputs = model.forward(model.new_cache(batch=2), [0, 1], [[1, 2, 3], [4]], [2, 1])
        >>> len(outputs), outputs.logits(0, 2).shape, outputs.states(2, 3).shape
        (3, (2, 4096), (1, 256))
        """
        _check_cache(cache)
        segments = checked_segments(rows, ids, outputs, self.config.vocab_size)
        if not segments:
            raise InputError("rows is empty; a pass takes at least one token")
        functions = by_name(fwd_hooks, self.config.n_layer)
        network: Network = HookedNetwork(self._active, functions) if functions else self._active
        return network.forward(cache, *arguments(segments), num_threads=self.num_threads)

    # Looking inside, and changing it

    @property
    def hook_names(self) -> list[str]:
        """The names of all that hooks can see and change, those of TransformerLens 3, in the order of computation.

        >>> import gpt2fast
        >>> gpt2fast.load("demo").model.hook_names[:3]
        ['hook_embed', 'hook_pos_embed', 'blocks.0.hook_resid_pre']
        """
        return hook_names(self.config.n_layer)

    @property
    def has_hooks(self) -> bool:
        """Whether functions are called in the model's passes now: see `hooks`."""
        return self._active is not self._network

    @contextmanager
    def hooks(self, fwd_hooks: Iterable[Hook]) -> Iterator[GPT2]:
        """Within the block every pass of the model calls functions: those of generation and scoring, too.

        `fwd_hooks` are pairs of a name and a function.  The name is one of `hook_names`, a list of them, or a function
        of a name that is true of those that are meant.  The function is called as `function(activation, hook=point)`
        with an array float32 [texts, tokens, ...] that is its own, and a `HookPoint` with `.name` and `.layer()`.  It
        changes the array in place, or returns what is to come in its place.  Shapes are those of TransformerLens; of
        attention scores and patterns [texts, heads, queries, keys].

        A pass gives a function all texts in one array where they have the same number of tokens, else it calls the
        function once for each text: nothing is padded.  `HookPoint.start` is the position of the first token, above 0
        where a KV cache holds what came before.  What functions do not change is the same bit for bit as without them.
        Blocks may be nested; all threads that use the model meet the functions.

        Raises InputError for a name that does not exist, a changed array of another shape, one that is not finite, and
        a model on a GPU; InputTypeError for what is no function or array.  A pass that fails, with an error of a
        function as well, leaves the KV cache as it was.

        >>> import gpt2fast
        >>> lm = gpt2fast.load("demo")
        >>> def half(mlp_out, hook):
        ...     return 0.5 * mlp_out
        >>> with lm.model.hooks([("blocks.0.hook_mlp_out", half)]):
        ...     print(lm.generate("Once upon a time", temperature=0, max_new_tokens=6).text)
        , and was very much surprised
        """
        before = self._active
        self._active = HookedNetwork(before, by_name(fwd_hooks, self.config.n_layer))
        try:
            yield self
        finally:
            self._active = before

    def run_with_hooks(
        self,
        ids: npt.ArrayLike | Sequence[npt.ArrayLike],
        fwd_hooks: Iterable[Hook] = (),
        *,
        cache: Cache | None = None,
        start_at_layer: int | None = None,
        stop_at_layer: int | None = None,
        last_only: bool = False,
    ) -> Any:
        """The logits of a run in which functions are called, as `hooks` explains them.

        For ids (T,) they are float32 (T, vocab_size), for (B, T) there is a dimension for the texts before, and for a
        list of texts of different lengths they are a list of arrays.  With `last_only` they are those after the last
        token of each text.  With `cache` the ids continue what it holds, as in a call.

        With `stop_at_layer` the run ends before that layer, and the residual stream that it would take comes back, of
        shape (T, n_embd).  With `start_at_layer` the run begins with that layer, and takes such a stream for `ids`:
        runs that differ from some layer on share what is below it.  Negative numbers count from the end, as in slices.

        Raises as a call and `hooks` do, and InputError for layers that are not there, a text of no tokens, and a KV
        cache beside a part of the layers.

        >>> import gpt2fast
        >>> lm = gpt2fast.load("demo")
        >>> ids = lm.tokenizer.encode("The king's daughter")
        >>> stream = lm.model.run_with_hooks(ids, stop_at_layer=4)
        >>> bool((lm.model.run_with_hooks(stream, start_at_layer=4) == lm.model(ids)).all())
        True
        """
        network = HookedNetwork(self._active, by_name(fwd_hooks, self.config.n_layer))
        run = hooked_run.Run.checked(self.config.n_layer, start_at_layer, stop_at_layer, last_only, cache)
        texts = hooked_run.Texts.of(ids, self.config, resumes=start_at_layer is not None)
        if cache is None:
            cache = self.new_cache(len(texts.texts), texts.longest)
        return run.run(network, cache, texts, num_threads=self.num_threads)

    def run_with_cache(
        self,
        ids: npt.ArrayLike | Sequence[npt.ArrayLike],
        names_filter: NameFilter | None = None,
        *,
        cache: Cache | None = None,
        start_at_layer: int | None = None,
        stop_at_layer: int | None = None,
        last_only: bool = False,
        remove_batch_dim: bool = False,
    ) -> tuple[Any, ActivationCache]:
        """What `run_with_hooks` gives, and the activations of the run, an `ActivationCache`.

        `names_filter` says which are kept: one of `hook_names`, a list of them, or a function of a name that is true of
        those that are meant; by default all but `attn.hook_result`.  Shapes are those of TransformerLens, with a first
        dimension for the texts, which `remove_batch_dim` leaves out of a single one's.  `cache` is a KV cache.  The
        logits are the same bit for bit as those of a call.

        Raises as `run_with_hooks` does.

        >>> import gpt2fast
        >>> lm = gpt2fast.load("demo")
        >>> ids = lm.tokenizer.encode("Once upon a time")
        >>> logits, cache = lm.model.run_with_cache(ids, "blocks.0.attn.hook_pattern")
        >>> logits.shape, cache["blocks.0.attn.hook_pattern"].shape  # one text, heads, queries, keys
        ((4, 4096), (1, 8, 4, 4))
        """
        recorder = hooked_run.Recorder()
        names = selected("names_filter", names_filter, self.config.n_layer)
        logits = self.run_with_hooks(
            ids,
            [(names, recorder.reader())],
            cache=cache,
            start_at_layer=start_at_layer,
            stop_at_layer=stop_at_layer,
            last_only=last_only,
        )
        found = ActivationCache(recorder.values(), self._parameters)
        return logits, found.remove_batch_dim() if flag("remove_batch_dim", remove_batch_dim) else found

    @property
    def _pass_size(self) -> int:
        """Tokens of a pass: with hooks all, as functions see whole texts."""
        return self.config.n_ctx * (1 << 31) if self.has_hooks else PASS

    def _apply(
        self,
        ids: npt.ArrayLike,
        cache: Cache | None,
        last_only: bool,
        *,
        logits: bool = False,
        stages: Sequence[int] | None = None,
    ) -> Floats:
        array, last_only = checked_ids(ids, self.config.vocab_size), flag("last_only", last_only)
        if cache is not None:
            _check_cache(cache)
        if array.ndim not in (1, 2):
            raise InputError(f"ids has {array.ndim} dimensions; expected (T,) or (B, T)")
        batch = np.atleast_2d(array)
        if batch.size == 0 and last_only:
            raise InputError("ids is empty; there is no last token to give the logits of")
        if cache is None:
            cache = self.new_cache(max(len(batch), 1), self.config.n_ctx)
        elif cache.batch != len(batch):
            raise InputError(f"the cache has {cache.batch} rows, ids {len(batch)}")
        wanted = 1 if last_only else batch.shape[1]
        segments = [Segment(row, row_ids, wanted) for row, row_ids in enumerate(batch)]
        if stages is not None:
            out = self._residual(cache, segments, stages)
        else:
            out = self._run(cache, segments, logits=logits)
        shape = array.shape[:-1] if last_only else array.shape
        return out.reshape(*out.shape[:-2], *shape, out.shape[-1])

    def _run(self, cache: Cache, segments: list[Segment], *, logits: bool) -> Floats:
        """The logits, or the final hidden states, at all outputs of the segments."""

        def run(cache_rows: Integers, counts: Integers, ids: Ids, places: Integers) -> Floats:
            outputs = self._active.forward(cache, cache_rows, counts, ids, places, num_threads=self.num_threads)
            return outputs.logits(0, len(outputs)) if logits else outputs.states(0, len(outputs))

        found = run_passes(run, cache, segments, n_ctx=self.config.n_ctx, size=self._pass_size)
        width = self.config.vocab_size if logits else self.config.n_embd
        return found[0] if len(found) == 1 else np.concatenate([np.empty((0, width), np.float32), *found])

    def _residual(self, cache: Cache, segments: list[Segment], stages: Sequence[int]) -> Floats:
        """The residual stream at `stages`, for all outputs of the segments."""
        numbers = np.array(stages, np.int64)

        def run(cache_rows: Integers, counts: Integers, ids: Ids, places: Integers) -> Floats:
            residual = partial(self._active.residual, num_threads=self.num_threads)
            return residual(cache, cache_rows, counts, ids, places, numbers)

        nothing = np.empty((len(stages), 0, self.config.n_embd), np.float32)
        limits = {"n_ctx": self.config.n_ctx, "size": self._pass_size}
        found = run_passes(run, cache, segments, **limits) if len(stages) else []
        return found[0] if len(found) == 1 else np.concatenate([nothing, *found], axis=-2)

    def save_pretrained(
        self,
        directory: str | Path,
        *,
        max_shard_size: int | str = "5GB",
        packed: bool = False,
        head: LabelHead | None = None,
    ) -> None:
        """Write config.json and model.safetensors (float32, Hugging Face's names and layout) into `directory`.

        Where the tensors are larger than `max_shard_size` together (bytes, or a text such as "5GB") they are written in
        shards, with model.safetensors.index.json.
        The values of a model in another dtype are those that it computes with.

        With `packed` the matrices are written as this model keeps them: an int8 model takes a quarter of the space and
        is there sooner, in the same dtype only.  A classifier's `head`, that of a `LanguageModel`, is written, too.

        The directory is made where it is missing; each file appears whole or not at all.  Raises InputError where
        `packed` is asked of a model without panels.
        """
        if flag("packed", packed) and self.gemm != "panel":
            raise InputError(f"gemm is {self.gemm!r}; only a model in panels can be packed")
        if not isinstance(head, (LabelHead, type(None))):
            raise InputTypeError(f"head is of type {type(head).__name__}; expected the head of a LanguageModel")
        packed_as = self.dtype if packed else None
        self._parameters.save(directory, max_shard_size=max_shard_size, packed_as=packed_as, head=head)


def _check_cache(cache: object) -> None:
    if not hasattr(cache, "copy_row"):
        raise InputTypeError(f"cache is of type {type(cache).__name__}; expected what new_cache gives")


def _open_backend(options: Mapping[str, str | None], num_threads: int | None) -> Backend:
    return open_backend(
        cast("str", options["device"]),
        dtype="float32" if options["dtype"] is None else options["dtype"],
        gemm=cast("str", options["gemm"]),
        num_threads=resolve_num_threads(num_threads),
        cache_dtype=options["cache_dtype"],
    )


def _load_again(origin: Origin, num_threads: int | None, digest: str) -> GPT2:
    """The model that was pickled as `origin`.  Raises InputError where other weights are there now."""
    options: dict[str, Any] = origin.options
    model = GPT2.from_pretrained(origin.directory, adapter=origin.adapter, num_threads=num_threads, **options)
    if model._parameters.digest() != digest:
        raise InputError(f"{origin.directory}: the weights are not those of the model that was pickled")
    return model


def _put_together(
    config: Config,
    tensors: dict[str, npt.NDArray[Any]],
    packed: bool,
    options: dict[str, str | None],
    num_threads: int | None,
) -> GPT2:
    """The model that was pickled with its tensors."""
    backend = _open_backend(options, num_threads)
    source = PackedArrays(config, tensors, backend.dtype) if packed else Arrays(config, tensors)
    return GPT2._load(source, backend, num_threads)
