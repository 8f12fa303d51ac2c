"""Fields that clients of other servers send: of OpenAI's own, vLLM's, SGLang's, llama.cpp's and Hugging Face's.

What has a meaning here is read where requests are parsed.  The rest is ignored where it changes no text, and where it
would, only the value is taken that turns it off: a text is never another one than was asked for.
"""

from __future__ import annotations

from typing import Any

from gpt2fast.server.request_body import RequestBody, refused, shown

__all__ = ["take_foreign"]

# Who asks, where answers are kept, how the work is done; and the numbers of methods that are off.
_IGNORED = {
    *("metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "store", "user"),
    *("add_special_tokens", "cache_salt", "detokenize", "ec_transfer_params", "include_reasoning"),
    *("kv_transfer_params", "priority", "request_id", "rid", "session_id", "session_params", "skip_special_tokens"),
    *("spaces_between_special_tokens", "stream_interval", "custom_labels", "extra_key", "bootstrap_host"),
    *("bootstrap_port", "bootstrap_room", "data_parallel_rank"),
    *("cache_prompt", "id_slot", "n_keep", "n_indent", "n_cache_reuse", "n_discard", "post_sampling_probs"),
    *("repeat_last_n", "response_fields", "return_progress", "slot_id", "t_max_predict_ms", "t_max_prompt_ms"),
    *("timings_per_token", "min_keep"),
    *("dry_allowed_length", "dry_base", "dry_penalty_last_n", "dry_sequence_breakers", "dynatemp_exponent"),
    *("mirostat_eta", "mirostat_lr", "mirostat_tau", "num_ctx", "penalize_nl", "penalty_prompt", "use_cache"),
    *("xtc_threshold"),
}

# What turns a method off that is not here; null does in any case.
_OFF: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": (),
    "bad_words": ([],),
    "custom_logit_processor": (),
    "custom_params": (),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "early_stopping": (False,),
    "encoder_no_repeat_ngram_size": (0,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "guidance_scale": (1,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (0, 1),
    "logits_processors": ([],),
    "lora": ([],),
    "lora_path": (),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "n_probs": (0,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "repetition_detection": (),
    "return_hidden_states": (False,),
    "samplers": (),
    "smoothing_factor": (0,),
    "temperature_last": (False,),
    "tfs": (1,),
    "tfs_z": (1,),
    "top_a": (0,),
    "top_n_sigma": (0, -1),
    "truncation_side": ("left",),
    "typical": (1,),
    "typical_p": (0, 1),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermark": (False,),
    "watermarking": (False,),
    "xtc_probability": (0,),
}


def take_foreign(body: RequestBody) -> None:
    """Take the fields that need nothing done.  Raises an ApiError for one that asks for what is not here."""
    for name in body.left():
        if name in _IGNORED:
            body.take(name)
        elif name in _OFF:
            value = body.take(name)
            off = _OFF[name]
            if value is not None and value not in off:
                expected = " or ".join(["null", *map(shown, off)])
                raise refused(name, f"is not supported; expected {expected}, which changes nothing")
