"""`gpt2fast serve`: the model over HTTP."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import Any

from gpt2fast.cli import common
from gpt2fast.errors import InputError

_KEY = "GPT2FAST_API_KEY"


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    serve = common.add_command(
        commands,
        "serve",
        _serve,
        "the model over HTTP",
        "Answer OpenAI's /v1/completions, /v1/chat/completions, /v1/embeddings and /v1/models, and /tokenize, "
        "/detokenize, /score, /health and /metrics; /docs tells of their fields, / is a page to try it.  SIGTERM or "
        "Ctrl-C lets running requests finish.",
    )
    common.add_model(serve)
    serve.add_argument("--name", help="what requests call the model (default: as --model, of a directory its name)")
    serve.add_argument(
        "--host", default="127.0.0.1", help="address to listen at; 0.0.0.0 is all (default: 127.0.0.1, this machine)"
    )
    serve.add_argument("--port", type=_port, default=8000, help="0 is any free one (default: 8000)")
    serve.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"requests must have it; other users of the machine see it here, but not in {_KEY}, which does the same",
    )
    serve.add_argument(
        "--api-keys",
        metavar="FILE",
        help="keys, one a line, each with name=, rate= (requests a minute) and concurrency= behind it where wanted",
    )
    serve.add_argument(
        "--allow-host",
        action="append",
        metavar="NAME",
        help="answer to this name, too, as behind a proxy, '*' for all; may be repeated",
    )
    serve.add_argument(
        "--allow-origin",
        action="append",
        metavar="ORIGIN",
        help="let pages of this site ask, such as https://example.org; may be repeated (default: none)",
    )
    serve.add_argument("--tls-cert", metavar="FILE", help="HTTPS with this certificate, and those that it hangs on")
    serve.add_argument("--tls-key", metavar="FILE", help="the certificate's key (default: in the same file)")
    serve.add_argument(
        "--chat-template",
        metavar="FILE",
        help="make prompts of chats by this template in Jinja, or in a tokenizer_config.json, as a fine-tune was "
        "trained on",
    )
    common.add_allow_special(serve)
    common.add_speculate(serve)
    serve.add_argument(
        "--batch-size", type=common.positive, default=16, metavar="N", help="texts that grow at once (default: 16)"
    )
    serve.add_argument(
        "--queue", type=int, default=128, metavar="N", help="texts that wait; more are refused (default: 128)"
    )
    serve.add_argument(
        "--max-body", type=common.positive, default=1 << 20, metavar="BYTES", help="of a request (default: 1 MiB)"
    )
    serve.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="S",
        help="seconds for a request, waiting included (default: 120)",
    )
    serve.add_argument(
        "--grace", type=float, default=30.0, metavar="S", help="seconds that SIGTERM leaves running ones (default: 30)"
    )
    serve.add_argument(
        "--connections", type=common.positive, default=1024, metavar="N", help="at the same time (default: 1024)"
    )
    serve.add_argument(
        "--memory",
        type=common.positive,
        default=128 << 20,
        metavar="BYTES",
        help="that larger requests and answers may hold (default: 128 MiB)",
    )
    serve.add_argument(
        "--look", action="store_true", help="a page at /look that shows attention, layers and heads at work on a text"
    )
    serve.add_argument("--log-json", action="store_true", help="the line for each request as JSON")
    serve.add_argument("--quiet", action="store_true", help="no line for each request on standard error")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; expected 0 to 65535")
    return int(text)


def _serve(options: argparse.Namespace) -> None:
    # Before the model: this tells at once what is not installed.
    from gpt2fast.server import ChatTemplate, Limits, bind, read_keys, serve

    if options.tls_key is not None and options.tls_cert is None:
        raise common.UsageError("there is --tls-key without --tls-cert, the certificate that it belongs to")
    limits = Limits(
        rows=options.batch_size,
        queue=options.queue,
        body=options.max_body,
        timeout=options.timeout,
        grace=options.grace,
        connections=options.connections,
        memory=options.memory,
    )
    key = os.environ.get(_KEY) if options.api_key is None else options.api_key
    if key == "":
        raise InputError("the key is empty; expected one, or none to let everybody in")
    keys = read_keys(options.api_keys) if options.api_keys is not None else []
    with bind(options.host, options.port) as bound:
        lm = common.load(options)
        template = None if options.chat_template is None else ChatTemplate.from_file(options.chat_template, lm)
        name = options.name or (Path(options.model).resolve().name if Path(options.model).is_dir() else options.model)
        _log(as_json=options.log_json, quiet=options.quiet)
        serve(
            lm,
            bound,
            name=name,
            limits=limits,
            key=key,
            keys=keys,
            hosts=options.allow_host,
            origins=options.allow_origin or (),
            speculate=options.speculate,
            chat_template=template,
            allow_special=options.allow_special,
            look=options.look,
            tls=None if options.tls_cert is None else (options.tls_cert, options.tls_key),
        )


def _log(*, as_json: bool, quiet: bool) -> None:
    """Lines on standard error."""
    from gpt2fast.server.metrics import JsonLines

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("gpt2fast.server").setLevel(logging.WARNING if quiet else logging.INFO)
