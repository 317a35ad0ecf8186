"""tools/bench/http_clients.py against servers that answer as the engines do."""

import asyncio
import contextlib
import io
import json
import unittest

from tools.bench import http_clients


def llama_events(prompt, answer):
    for _ in range(answer):
        yield {"content": "x", "stop": False}
    yield {"content": "", "stop": True, "tokens_evaluated": prompt,
           "tokens_predicted": answer}


def openai_events(prompt, answer):
    for _ in range(answer):
        yield {"choices": [{"text": "x"}], "usage": None}
    yield {"choices": [], "usage": {"prompt_tokens": prompt,
                                    "completion_tokens": answer}}


class Server:
    """Answers each request with `events`, split in odd places."""

    def __init__(self, events, chunked, status="200 OK"):
        self.events = events
        self.chunked = chunked
        self.status = status
        self.requests = []

    async def answer(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split()[0])
        self.requests.append(
            (head.split()[1].decode(), json.loads(await reader.readexactly(length))))
        text = b"".join(b"data: " + json.dumps(e).encode() + b"\n\n"
                        for e in self.events) + b"data: [DONE]\n\n"
        coding = b"Transfer-Encoding: chunked\r\n" if self.chunked else b""
        writer.write(f"HTTP/1.1 {self.status}\r\n".encode() + coding + b"\r\n")
        for at in range(0, len(text), 7):
            piece = text[at:at + 7]
            if self.chunked:
                writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            else:
                writer.write(piece)
        if self.chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()


async def measure(server, *flags):
    listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        return await http_clients.run(http_clients.arguments(
            ["--port", str(port), "--prompt_tokens", "5", "--output_tokens",
             "3", *flags]))


class HttpClientsTest(unittest.TestCase):
    def check(self, api, events, chunked):
        server = Server(list(events(5, 3)), chunked)
        result = asyncio.run(measure(server, "--api", api, "--clients", "4"))
        self.assertEqual(result["clients"], 4)
        self.assertGreater(result["output_tokens_per_second"], 0)
        self.assertGreaterEqual(result["first_token_max_seconds"],
                                result["first_token_p50_seconds"])
        self.assertGreaterEqual(result["longest_gap_seconds"], 0)
        prompts = [tuple(body["prompt"]) for _, body in server.requests]
        self.assertEqual([len(p) for p in prompts], [5] * 4)
        self.assertEqual(len(set(prompts)), 4)
        return server.requests[0]

    def test_llama_server(self):
        path, body = self.check("llama", llama_events, chunked=True)
        self.assertEqual((path, body["n_predict"]), ("/completion", 3))

    def test_openai_server(self):
        path, body = self.check("openai", openai_events, chunked=False)
        self.assertEqual((path, body["max_tokens"]), ("/v1/completions", 3))

    def test_wrong_counts_are_an_error(self):
        server = Server(list(openai_events(5, 2)), chunked=True)
        with self.assertRaisesRegex(http_clients.ServerError, r"\(5, 2\)"):
            asyncio.run(measure(server, "--api", "openai", "--clients", "1"))

    def test_refusals_are_errors(self):
        refused = Server([], chunked=False, status="503 Busy")
        with self.assertRaisesRegex(http_clients.ServerError, "503 Busy"):
            asyncio.run(measure(refused, "--api", "llama", "--clients", "2"))
        failed = Server([{"error": {"message": "no room"}}], chunked=True)
        with self.assertRaisesRegex(http_clients.ServerError, "no room"):
            asyncio.run(measure(failed, "--api", "openai", "--clients", "2"))

    def test_nobody_listens(self):
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            code = http_clients.main(["--api", "llama", "--port", "1",
                                      "--clients", "3"])
        self.assertEqual(code, 1)
        self.assertIn("http_clients: ", errors.getvalue())


if __name__ == "__main__":
    unittest.main()
