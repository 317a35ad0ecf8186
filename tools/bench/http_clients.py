#!/usr/bin/env python3
"""Clients of another engine's HTTP server, all at once.

Each of --clients sends one request as all are connected, and reads its stream:
a prompt of random token ids, an answer of exactly --output_tokens tokens. Prints
one line of JSON: output tokens/s from the first request to the last answer's
end, time to the first token, and the longest time between two messages. What
`keyformer-bench --concurrency N --requests N` asks of this server. Standard
library only.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time


class LlamaServer:
    """llama.cpp's llama-server."""

    path = "/completion"

    @staticmethod
    def body(options, prompt):
        return {
            "prompt": prompt,
            "n_predict": options.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "samplers": ["temperature"],
            "cache_prompt": False,
            "stream": True,
        }

    @staticmethod
    def counts(message):
        """(prompt, answer) tokens of the closing message; None of others."""
        if not message.get("stop"):
            return None
        return message["tokens_evaluated"], message["tokens_predicted"]


class OpenAiServer:
    """vLLM's server, and others with the same completions."""

    path = "/v1/completions"

    @staticmethod
    def body(options, prompt):
        return {
            "model": options.model,
            "prompt": prompt,
            "max_tokens": options.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    @staticmethod
    def counts(message):
        if message["choices"]:
            return None
        return (message["usage"]["prompt_tokens"],
                message["usage"]["completion_tokens"])


APIS = {"llama": LlamaServer, "openai": OpenAiServer}


class ServerError(Exception):
    pass


async def read_body(reader):
    """Pieces of a response's body, without its transfer coding."""
    status = await reader.readline()
    chunked = False
    while (line := await reader.readline()) not in (b"\r\n", b""):
        header = line.lower()
        if header.startswith(b"transfer-encoding:") and b"chunked" in header:
            chunked = True
    if b" 200 " not in status:
        text = status + await reader.read(4000)
        raise ServerError(text.decode(errors="replace"))
    while True:
        if chunked:
            size = int((await reader.readline()).split(b";")[0].strip() or b"0", 16)
            piece = (await reader.readexactly(size + 2))[:-2] if size else b""
        else:
            piece = await reader.read(65536)
        if not piece:
            return
        yield piece


async def read_events(reader):
    """(arrival, message) of each server-sent event but the last, [DONE]."""
    pending = b""
    async for piece in read_body(reader):
        now = time.perf_counter()
        pending = (pending + piece).replace(b"\r\n", b"\n")
        *whole, pending = pending.split(b"\n\n")
        for event in whole:
            if event.startswith(b"data:") and event[5:].strip() != b"[DONE]":
                yield now, json.loads(event[5:])


async def one_client(options, api, prompt, connected, go):
    reader, writer = await asyncio.open_connection(
        options.host, options.port, limit=1 << 20)
    try:
        body = json.dumps(api.body(options, prompt)).encode()
        connected.release()
        await go.wait()
        sent = time.perf_counter()
        writer.write((f"POST {api.path} HTTP/1.1\r\n"
                      f"Host: {options.host}:{options.port}\r\n"
                      "Content-Type: application/json\r\n"
                      f"Content-Length: {len(body)}\r\n"
                      "Connection: close\r\n\r\n").encode() + body)
        times = []
        counts = None
        async for now, message in read_events(reader):
            if "error" in message:
                raise ServerError(json.dumps(message["error"]))
            counts = api.counts(message) or counts
            if api.counts(message) is None:
                times.append(now)
    finally:
        writer.close()
    wanted = (options.prompt_tokens, options.output_tokens)
    if counts != wanted:
        raise ServerError(f"(prompt, answer) of {counts} tokens, want {wanted}")
    gaps = [later - sooner for sooner, later in zip(times, times[1:])]
    return {"sent": sent, "first": times[0] - sent, "end": times[-1],
            "gap": max(gaps, default=0.0)}


async def run(options):
    api = APIS[options.api]
    source = random.Random(options.seed)
    connected = asyncio.Semaphore(0)
    go = asyncio.Event()
    tasks = []
    for _ in range(options.clients):
        prompt = [source.randrange(options.first_token, options.vocabulary)
                  for _ in range(options.prompt_tokens)]
        tasks.append(asyncio.create_task(
            one_client(options, api, prompt, connected, go)))
    answers = asyncio.gather(*tasks)
    for _ in range(options.clients):
        # A client that fails to connect ends the run.
        waiting = asyncio.ensure_future(connected.acquire())
        await asyncio.wait([waiting, answers],
                           return_when=asyncio.FIRST_COMPLETED)
        if answers.done():
            waiting.cancel()
            break
    go.set()
    results = await answers
    seconds = (max(r["end"] for r in results) -
               min(r["sent"] for r in results))
    firsts = [r["first"] for r in results]
    return {
        "clients": options.clients,
        "output_tokens_per_second":
            options.clients * options.output_tokens / seconds,
        "first_token_p50_seconds": statistics.median(firsts),
        "first_token_max_seconds": max(firsts),
        "longest_gap_seconds": max(r["gap"] for r in results),
    }


def arguments(argv):
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--api", choices=sorted(APIS), required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--prompt_tokens", type=int, default=990)
    parser.add_argument("--output_tokens", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=49152)
    parser.add_argument("--first_token", type=int, default=300,
                        help="prompts have none below: special ones, bytes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="model",
                        help="openai: the name under which it is served")
    return parser.parse_args(argv)


def main(argv=None):
    try:
        print(json.dumps(asyncio.run(run(arguments(argv)))))
    except (ServerError, OSError, asyncio.IncompleteReadError) as error:
        print(f"http_clients: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
