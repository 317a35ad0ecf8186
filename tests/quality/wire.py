"""A connection to a Keyformer server, from plain dicts to plain dicts.

The only file that needs grpc and protobuf (Debian: python3-grpcio,
python3-protobuf). The messages come from the project's own proto, compiled by
protoc into a scratch folder at each start, so they cannot be stale.
"""

import importlib
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROTO = "keyformer/v1/generation.proto"

# gRPC codes that say "this server does not have that": the request is left out
# of the tables and asked again next time.
NOT_OFFERED = ("UNIMPLEMENTED",)


class NotOffered(Exception):
    """The server does not have what the request asks for."""


class Refused(Exception):
    """Any other error of an RPC: its code and message."""


def load_messages():
    """Compiles the proto and imports the module of its messages."""
    scratch = tempfile.mkdtemp(prefix="keyformer-quality-")
    subprocess.run(
        ["protoc", f"--proto_path={ROOT / 'proto'}", f"--python_out={scratch}",
         PROTO], check=True)
    sys.path.insert(0, scratch)
    try:
        return importlib.import_module("keyformer.v1.generation_pb2")
    finally:
        sys.path.remove(scratch)


class Client:
    """Thread-safe; each call blocks."""

    def __init__(self, address: str):
        import grpc
        from google.protobuf import json_format
        self._grpc = grpc
        self._json = json_format
        self._pb = load_messages()
        self._channel = grpc.insecure_channel(
            address, options=[("grpc.max_receive_message_length", -1),
                              ("grpc.max_send_message_length", -1)])

    def wait_ready(self, timeout_s: float) -> dict:
        """model_info() as soon as the model is loaded; Refused if late."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self.model_info()
            except Refused as error:
                if (not str(error).startswith("UNAVAILABLE")
                        or time.monotonic() > deadline):
                    raise
            time.sleep(0.2)

    def _call(self, method, request_type, response_type, request, timeout_s):
        rpc = self._channel.unary_unary(
            f"/keyformer.v1.GenerationService/{method}",
            request_serializer=request_type.SerializeToString,
            response_deserializer=response_type.FromString)
        try:
            return rpc(request, timeout=timeout_s, wait_for_ready=True)
        except self._grpc.RpcError as error:
            code = error.code().name
            text = f"{code}: {error.details()}"
            if code in NOT_OFFERED:
                raise NotOffered(text) from None
            raise Refused(text) from None

    def model_info(self) -> dict:
        pb = self._pb
        response = self._call("ModelInfo", pb.ModelInfoRequest,
                              pb.ModelInfoResponse, pb.ModelInfoRequest(), 60)
        return self._json.MessageToDict(response,
                                        preserving_proto_field_name=True)

    def tokenize(self, text: str) -> list:
        pb = self._pb
        request = pb.TokenizeRequest(text=text)
        response = self._call("Tokenize", pb.TokenizeRequest,
                              pb.TokenizeResponse, request, 60)
        return list(response.token_ids)

    def generate(self, request: dict, timeout_s: float = 7200) -> dict:
        """`request`: GenerateRequest as JSON. Returns what the tasks read."""
        pb = self._pb
        message = self._json.ParseDict(request, pb.GenerateRequest())
        response = self._call("Generate", pb.GenerateRequest,
                              pb.GenerateResponse, message, timeout_s)
        usage = response.usage
        return {
            "sequences": [self._sequence(s) for s in response.sequences],
            "prompt_tokens": usage.prompt_tokens,
            "generated_tokens": usage.generated_tokens,
            "budget_tokens": usage.cache_budget_tokens,
            "evicted_tokens": usage.evicted_tokens,
            "noise_seed": response.noise_seed,
        }

    @staticmethod
    def _sequence(sequence) -> dict:
        answer = {
            "text": sequence.text,
            "tokens": len(sequence.token_ids),
            "finish": sequence.finish_reason,
        }
        if sequence.score:
            answer["score"] = sequence.score
        if sequence.logprobs:
            answer["logprobs"] = [round(t.logprob, 6)
                                  for t in sequence.logprobs]
            answer["ranks"] = [t.rank for t in sequence.logprobs]
            # The most probable token, where it was asked for.
            answer["best"] = [t.top[0].token_id for t in sequence.logprobs
                              if t.top]
        return answer
