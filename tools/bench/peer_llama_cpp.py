#!/usr/bin/env python3
"""One row of `keyformer-bench --scenario peers` on llama.cpp.

Evaluates the prompts of all streams, then decodes one token of each stream a
step, through llama.cpp's own batches: what its server can reach at best. Needs
the package llama-cpp-python. Prints one line of JSON.
"""

import argparse
import json
import random
import time

import llama_cpp

BATCH = 2048  # most tokens a call; llama.cpp computes 512 of them at once


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--file", help="serve this instead of --model: the same"
                        " model in another format")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--prompt_tokens", type=int, required=True)
    parser.add_argument("--output_tokens", type=int, required=True)
    return parser.parse_args()


def new_context(model, options):
    params = llama_cpp.llama_context_default_params()
    # llama.cpp gives each stream whole blocks of 256 tokens.
    length = options.prompt_tokens + options.output_tokens
    params.n_ctx = options.streams * (-(-length // 256) * 256)
    params.n_batch = BATCH
    params.n_ubatch = 512
    params.n_seq_max = options.streams
    params.n_threads = params.n_threads_batch = options.threads
    # A buffer for each stream: in one for all, each row would attend over the
    # tokens of every stream, most of them masked.
    params.kv_unified = False
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise SystemExit("llama.cpp: the context cannot be created")
    return context


def decode(context, batch, rows):
    """`rows`: (token, position, stream, whether its logits are wanted)."""
    batch.n_tokens = len(rows)
    for i, (token, position, stream, wanted) in enumerate(rows):
        batch.token[i] = token
        batch.pos[i] = position
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = stream
        batch.logits[i] = wanted
    if llama_cpp.llama_decode(context, batch) != 0:
        raise SystemExit("llama.cpp: llama_decode failed")
    llama_cpp.llama_synchronize(context)


def warm_up(context, batch):
    """A short answer, as our own server gets one before it is measured."""
    decode(context, batch, [(i, i, 0, i == 31) for i in range(32)])
    for position in range(32, 40):
        decode(context, batch, [(position, position, 0, True)])
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)


def measure(context, vocabulary, options):
    """Seconds of all prompts and of all steps."""
    numbers = random.Random(1)
    batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
    warm_up(context, batch)
    last = options.prompt_tokens - 1
    rows = [(numbers.randrange(vocabulary), position, stream, position == last)
            for stream in range(options.streams)
            for position in range(options.prompt_tokens)]
    start = time.perf_counter()
    for first in range(0, len(rows), BATCH):
        decode(context, batch, rows[first:first + BATCH])
    prompts_s = time.perf_counter() - start
    start = time.perf_counter()
    for step in range(1, options.output_tokens):
        decode(context, batch,
               [(numbers.randrange(vocabulary), last + step, stream, True)
                for stream in range(options.streams)])
    return prompts_s, time.perf_counter() - start


def main():
    options = arguments()
    llama_cpp.llama_log_set(QUIET, None)
    model = llama_cpp.llama_model_load_from_file(
        (options.file or options.model).encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise SystemExit("llama.cpp: the model cannot be loaded")
    vocabulary = llama_cpp.llama_vocab_n_tokens(
        llama_cpp.llama_model_get_vocab(model))
    context = new_context(model, options)
    prompts_s, steps_s = measure(context, vocabulary, options)
    print(json.dumps({
        "version": llama_cpp.__version__,
        "prompt_tokens_per_second":
            options.streams * options.prompt_tokens / prompts_s,
        "decode_tokens_per_second":
            options.streams * (options.output_tokens - 1) / steps_s,
    }))


@llama_cpp.llama_log_callback
def QUIET(level, text, data):
    pass


if __name__ == "__main__":
    main()
