"""Models from the hub: its real client against a loopback server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kvbench.base.errors import UserError
from kvbench.model.spec import ModelSpec, model_identity
from support.cases import slow
from support.families import random_network, saved, saved_wrapper
from support.tokenizers import THINKING, byte_bpe

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """A loopback server with one repository."""
    with serving("owner/small", saved(tmp_path / "repo")) as server:
        yield server


@contextmanager
def serving(repository: str, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A loopback server that speaks the hub's file protocol for one repository."""
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def answer(self, body: bytes, kind: str, etag: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{etag}"')
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def refuse(self, code: str) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            asked.append(path)
            parts = path.strip("/").split("/")
            if path.startswith(f"/api/models/{repository}"):
                files = [{"rfilename": f.name} for f in sorted(folder.iterdir())]
                facts = {"id": repository, "sha": COMMIT, "siblings": files}
                tree = [
                    {"type": "file", "path": f.name, "size": f.stat().st_size, "oid": f.name}
                    for f in sorted(folder.iterdir())
                ]
                body = tree if "/tree/" in path else facts
                return self.answer(json.dumps(body).encode(), "application/json", "facts")
            if parts[:3] != [*repository.split("/"), "resolve"]:
                return self.refuse("RepoNotFound")
            if parts[3] not in ("main", COMMIT):
                return self.refuse("RevisionNotFound")
            file = folder / parts[4]
            if not file.is_file():
                return self.refuse("EntryNotFound")
            self.answer(file.read_bytes(), "application/octet-stream", file.name)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def ask_the_hub(endpoint: str, home: Path, path: str, **environment: str) -> dict[str, Any]:
    """Load a hub model, or the preset of a name without a slash, and let it answer.

    In a process of its own, since the client reads its settings at import.
    """
    code = f"""
        import json, sys
        import kvbench
        name, _, revision = {path!r}.partition("@")
        settings = {{"revision": revision}} if revision else {{}}
        try:
            model = kvbench.load_model(name, device="cpu", dtype="float32", **settings)
        except kvbench.UserError as error:
            print(json.dumps({{"error": str(error)}}))
            sys.exit()
        norm = sum(float(p.double().norm()) for p in model.network.parameters())
        context = model.prefill("a long text " * 9)
        answers = [
            context.compress(method, budget).generate("what?", max_new_tokens=4)
            for method, budget in [("fullkv", 1.0), ("spindlekv", 0.6)]
        ]
        seen = {{"norm": norm, "closing": context.closing, "answers": answers}}
        print(json.dumps({{"identity": model.loaded.identity, **seen}}))
    """
    variables = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **variables, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.slow
def test_a_hub_model_loads_through_the_real_client_and_records_its_commit(
    hub: tuple[str, list[str]], tmp_path: Path
) -> None:
    endpoint, asked = hub
    first = ask_the_hub(endpoint, tmp_path / "home", "owner/small")
    assert first["identity"]["revision"] == COMMIT
    assert first["identity"]["source"] == "hub"
    norm = sum(float(p.double().norm()) for p in random_network("llama").parameters())
    assert first["norm"] == pytest.approx(norm)
    assert any(path.endswith("model.safetensors") for path in asked)
    asked.clear()
    again = ask_the_hub(endpoint, tmp_path / "home", f"owner/small@{COMMIT}", HF_HUB_OFFLINE="1")
    assert again == first
    assert asked == []


@pytest.mark.parametrize("path", ["owner/absent", slow("owner/small@no-such-branch")])
def test_a_model_the_hub_does_not_have_is_one_clear_line(
    hub: tuple[str, list[str]], tmp_path: Path, path: str
) -> None:
    error = ask_the_hub(hub[0], tmp_path / "home", path)["error"]
    assert path.partition("@")[0] in error and path.partition("@")[2] in error
    assert "check the name" in error and "\n" not in error


def test_a_hub_out_of_reach_is_one_line_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    began = time.monotonic()
    with pytest.raises(UserError, match="check the name and the network"):
        model_identity(ModelSpec(name="absent", path="owner/never-fetched"))
    assert time.monotonic() - began < 10, "the client tried again and again"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "repository", "family"),
    [
        ("gemma-3-4b-it", "google/gemma-3-4b-it", "gemma3"),
        ("smollm3-3b", "HuggingFaceTB/SmolLM3-3B", "smollm3"),
        ("glm-4-9b", "zai-org/GLM-4-9B-0414", "glm4"),
    ],
)
def test_a_preset_loads_from_the_hub_and_answers(
    preset: str, repository: str, family: str, tmp_path: Path
) -> None:
    folder = tmp_path / "repo"
    if family == "gemma3":
        network = saved_wrapper(folder, old_names=True).model.language_model
    else:
        network = random_network(family, vocab_size=420)
        network.save_pretrained(folder)
        byte_bpe(THINKING).save_pretrained(folder)
    with serving(repository, folder) as (endpoint, _):
        found = ask_the_hub(endpoint, tmp_path / "home", preset)
    assert "error" not in found, found["error"]
    assert found["identity"]["path"] == repository and found["identity"]["revision"] == COMMIT
    norm = sum(float(p.double().norm()) for p in network.parameters())
    assert found["norm"] == pytest.approx(norm)
    assert len(found["answers"]) == 2
    assert found["closing"].endswith("</think>\n\n") is (preset == "smollm3-3b")
