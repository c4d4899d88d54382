"""A server of batches on all five wires, in a process of its own. It records all requests, and fails on demand.

    python -m tests.support.batch_server FOLDER [PORT]

Its state is in FOLDER, so it may be killed and started again. It prints its URL, and runs until its stdin is
closed. A job ends at the second poll. The words of a request decide its result:

    "fail"      the provider refuses it and does not bill it
    "late"      it expires and is not billed
    "nothing"   the results have no line for it
    "half"      if the job is cancelled, this request and all requests before it are still answered

POST /faults takes a JSON list, and each fault happens once, at the next request of its kind; null removes all
faults:

    "lose create"     the job is made, and the connection closes without an answer
    "hold create"     the job is made, and there is no answer as long as the client runs
    "drop create"     the connection closes, and nothing is made
    "busy create"     429 with retry-after 0
    "lose upload"     the file is kept, and the connection closes
    "break results"   a half of the results, and the connection closes
    "cut results"     a half of the results in the middle of a line, as if it were all
    "short results"   a half of the lines, and a good end
    "twice results"   every line comes twice
    "fail job"        the next job fails as a whole;  "expire job", it expires
    "lose look"       a look at a job gets no answer
    "foreign create"  somebody else makes a job of the same size at the same moment

GET /books returns the jobs with their marks and the result of each request, and the billed requests.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from .server_process import ServerProcess, faults_after, serve


def tokens_of(text: str) -> tuple[int, int]:
    """The input and output tokens of a request, which depend on its text."""
    return 1000 + 7 * len(text), 101 + len(text)


def _rfc3339(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _all_text(body: Any) -> str:
    """The last piece of text in a request of any wire."""
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                if name in ("text", "content") and isinstance(inner, str):
                    found.append(inner)
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(body.get("messages") or body.get("input") or body.get("contents"))
    return found[-1] if found else ""


def reply_of(wire: str, model: str, text: str) -> dict[str, Any]:
    """The body of the response to a request of a wire."""
    sent, said = tokens_of(text)
    words = f"answer to {text}"
    match wire:
        case "anthropic":
            return {
                "id": "msg_1", "type": "message", "role": "assistant", "model": model,
                "content": [{"type": "text", "text": words}], "stop_reason": "end_turn",
                "usage": {"input_tokens": sent, "output_tokens": said, "service_tier": "batch"},
            }  # fmt: skip
        case "openai":
            content = [{"type": "output_text", "text": words, "annotations": []}]
            item = {
                "type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content,
            }  # fmt: skip
            usage = {"input_tokens": sent, "output_tokens": said, "total_tokens": sent + said}
            return {
                "id": "resp_1", "object": "response", "status": "completed", "model": model, "output": [item],
                "usage": usage, "service_tier": "default",
            }  # fmt: skip
        case "gemini":
            usage = {"promptTokenCount": sent, "candidatesTokenCount": said, "totalTokenCount": sent + said}
            candidate = {"content": {"role": "model", "parts": [{"text": words}]}, "finishReason": "STOP"}
            return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model, "responseId": "r1"}
        case _:
            usage = {"prompt_tokens": sent, "completion_tokens": said, "total_tokens": sent + said}
            choice = {"index": 0, "message": {"role": "assistant", "content": words}, "finish_reason": "stop"}
            return {
                "id": "chat_1", "object": "chat.completion", "model": model, "choices": [choice], "usage": usage,
            }  # fmt: skip


class Books:
    """The state of the server, which is written to disk after each change."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "books.json"
        self.lock = Lock()
        self.jobs: dict[str, dict[str, Any]] = {}
        self.files: dict[str, str] = {}
        self.faults: list[str] = []
        if self._path.exists():
            known = json.loads(self._path.read_text())
            self.jobs, self.files, self.faults = known["jobs"], known["files"], known["faults"]

    def keep(self) -> None:
        text = json.dumps({"jobs": self.jobs, "files": self.files, "faults": self.faults})
        fresh = self._path.with_suffix(".new")
        fresh.write_text(text)
        fresh.rename(self._path)

    def strikes(self, fault: str) -> bool:
        """Whether a fault happens now."""
        if fault not in self.faults:
            return False
        self.faults.remove(fault)
        self.keep()
        return True

    def make(self, wire: str, model: str, mark: str, requests: list[tuple[str, Any]]) -> dict[str, Any]:
        number = f"{wire}{len(self.jobs) + 1}"
        ending = "failed" if self.strikes("fail job") else "expired" if self.strikes("expire job") else "completed"
        job = {
            "id": f"batches/{number}" if wire == "gemini" else f"batch_{number}", "wire": wire, "model": model,
            "mark": mark,
            "requests": [[key, _all_text(body), body.get("model") or model] for key, body in requests],
            "created": time.time(), "looks": 0, "status": "running", "ending": ending, "results": {},
        }  # fmt: skip
        self.jobs[job["id"]] = job
        self.keep()
        return job

    def look(self, job: dict[str, Any]) -> None:
        """Advance a job, as each poll does."""
        job["looks"] += 1
        if job["status"] == "cancelling":
            self._end(job, "cancelled")
        elif job["status"] == "running" and job["looks"] >= 2:
            self._end(job, job["ending"])
        self.keep()

    def _end(self, job: dict[str, Any], status: str) -> None:
        job["status"] = status
        halves = [place for place, (_, text, _) in enumerate(job["requests"]) if "half" in text]
        answered = len(job["requests"])
        if status in ("cancelled", "expired"):
            answered = halves[-1] + 1 if halves else 0
        for place, (key, text, _) in enumerate(job["requests"]):
            if status == "failed" or "nothing" in text:
                continue
            if place >= answered:
                job["results"][key] = "cancelled" if status == "cancelled" else "expired"
            else:
                job["results"][key] = "failed" if "fail" in text else "expired" if "late" in text else "answered"

    def told(self) -> dict[str, Any]:
        told = ("id", "wire", "mark", "model", "status", "results")
        jobs = [
            {**{name: job[name] for name in told}, "keys": [key for key, _, _ in job["requests"]]}
            for job in self.jobs.values()
        ]
        billed = [
            key for job in self.jobs.values() for key, result in job["results"].items() if result == "answered"
        ]
        sizes = [len(job["requests"]) for job in self.jobs.values()]
        return {"jobs": jobs, "billed": sorted(billed), "sizes": sizes}


BOOKS: Books


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        with BOOKS.lock:
            self._get()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        with BOOKS.lock:
            held = self._post(body)
        if held:
            self.rfile.read(1)  # until the connection closes
            self.close_connection = True

    def _say(self, value: Any, status: int = 200, **headers: str) -> None:
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, said in {"content-type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), said)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _hang_up(self) -> None:
        self.close_connection = True

    # -- what is asked

    def _get(self) -> None:
        path = urlsplit(self.path).path
        if path == "/books":
            return self._say(BOOKS.told())
        if path.endswith("/content"):
            job_id, _, kind = path.split("/")[-2].partition(".")
            return self._results(self._lines(BOOKS.jobs[job_id], kind))
        if path.endswith("/results"):
            return self._results(self._lines(BOOKS.jobs[path.split("/")[-2]], "all"))
        if path.endswith(("/batches", "/batch/jobs")):
            return self._list(path)
        job = BOOKS.jobs.get(path.removeprefix("/v1beta/") if "v1beta" in path else path.split("/")[-1])
        if job is None:
            return self._say({"error": {"message": "no such batch", "type": "not_found_error"}}, 404)
        if BOOKS.strikes("lose look"):
            return self._hang_up()
        over = job["status"] not in ("running", "cancelling")
        BOOKS.look(job)
        told = _describe(job)
        if job["wire"] == "gemini" and job["status"] not in ("running", "cancelling"):
            said = self._gemini_results(job, told, short=over and BOOKS.strikes("short results"))
            if over and BOOKS.strikes("break results"):
                return self._break(json.dumps(said).encode())
            return self._say(said)
        return self._say(told)

    def _list(self, path: str) -> None:
        wires = {"gemini"} if "v1beta" in path else {"anthropic"} if "messages" in path else {"openai", "groq"}
        if path.endswith("/batch/jobs"):
            wires = {"mistral"}
        jobs = [job for job in BOOKS.jobs.values() if job["wire"] in wires]
        told = [_describe(job) for job in reversed(jobs)]
        self._say({"operations": told} if "gemini" in wires else {"data": told, "has_more": False})

    def _post(self, body: bytes) -> bool:
        """Carry out a request. Returns whether it gets no response."""
        path = urlsplit(self.path).path
        if path == "/faults":
            BOOKS.faults = faults_after(BOOKS.faults, json.loads(body))
            BOOKS.keep()
            self._say({})
        elif path.endswith(("/cancel", ":cancel")):
            self._cancel(path)
        elif path.endswith("/files"):
            self._upload(body)
        else:
            return self._create(path, body)
        return False

    def _create(self, path: str, body: bytes) -> bool:
        if BOOKS.strikes("drop create"):
            self._hang_up()
            return False
        if BOOKS.strikes("busy create"):
            self._say({"error": {"message": "slow down"}}, 429, retry_after="0")
            return False
        wire, model, mark, requests = self._read_creation(path, json.loads(body))
        if BOOKS.strikes("foreign create"):
            BOOKS.make(wire, model, "of somebody else", [(f"other-{key}", {}) for key, _ in requests])
        job = BOOKS.make(wire, model, mark, requests)
        if BOOKS.strikes("hold create"):
            return True
        if BOOKS.strikes("lose create"):
            self._hang_up()
        else:
            self._say(_describe(job))
        return False

    def _read_creation(self, path: str, said: Any) -> tuple[str, str, str, list[tuple[str, Any]]]:
        if path.endswith("/messages/batches"):
            requests = [(item["custom_id"], item["params"]) for item in said["requests"]]
            return "anthropic", requests[0][1]["model"], "", requests
        if path.endswith(":batchGenerateContent"):
            batch = said["batch"]
            inlined = batch["inputConfig"]["requests"]["requests"]
            model = path.split("/")[-1].partition(":")[0]
            requests = [(item["metadata"]["key"], item["request"]) for item in inlined]
            return "gemini", model, batch["displayName"], requests
        mistral = path.endswith("/batch/jobs")
        file_id = said["input_files"][0] if mistral else said["input_file_id"]
        lines = [json.loads(line) for line in BOOKS.files[file_id].splitlines()]
        requests = [(line["custom_id"], line["body"]) for line in lines]
        wire = "mistral" if mistral else "openai" if said["endpoint"] == "/v1/responses" else "groq"
        if not mistral:
            assert all(line["url"] == said["endpoint"] and line["method"] == "POST" for line in lines)
        model = said["model"] if mistral else requests[0][1]["model"]
        return wire, model, said["metadata"]["callboard_batch"], requests

    def _upload(self, body: bytes) -> None:
        form = message_from_bytes(b"content-type: " + self.headers["content-type"].encode() + b"\r\n\r\n" + body)
        parts = {part.get_param("name", header="content-disposition"): part for part in form.get_payload()}  # type: ignore[union-attr]
        assert parts["purpose"].get_payload(decode=True) == b"batch"  # type: ignore[union-attr]
        name = f"file-{len(BOOKS.files) + 1}"
        BOOKS.files[name] = parts["file"].get_payload(decode=True).decode()  # type: ignore[union-attr]
        BOOKS.keep()
        if BOOKS.strikes("lose upload"):
            return self._hang_up()
        return self._say({"id": name, "object": "file", "purpose": "batch"})

    def _cancel(self, path: str) -> None:
        name = path.removeprefix("/v1beta/").removesuffix(":cancel") if "v1beta" in path else path.split("/")[-2]
        job = BOOKS.jobs.get(name)
        if job is None:
            return self._say({"error": {"message": "no such batch", "type": "not_found_error"}}, 404)
        if job["status"] != "running":
            return self._say({"error": {"message": "it is over", "type": "invalid_request_error"}}, 400)
        job["status"] = "cancelling"
        BOOKS.keep()
        return self._say({} if job["wire"] == "gemini" else _describe(job))

    # -- results

    def _lines(self, job: dict[str, Any], kind: str) -> list[dict[str, Any]]:
        """The lines of one file, the last request first."""
        lines = []
        for key, text, model in reversed(job["requests"]):
            result = job["results"].get(key)
            if result == "cancelled" and job["wire"] != "anthropic":
                result = None  # the request has no line
            if result is None or (kind != "all" and (result == "answered") != (kind == "output")):
                continue
            reply = reply_of(job["wire"], model, text) if result == "answered" else None
            lines.append(_line(job["wire"], key, result, reply))
        return lines

    def _results(self, lines: list[dict[str, Any]]) -> None:
        if BOOKS.strikes("short results"):
            lines = lines[: len(lines) // 2]
        if BOOKS.strikes("twice results"):
            lines = [line for line in lines for _ in range(2)]
        text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        if BOOKS.strikes("break results"):
            return self._break(text)
        if BOOKS.strikes("cut results"):
            text = text[: len(text) // 2 + 3]
        return self._say(text)

    def _break(self, text: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text[: len(text) // 2 + 3])
        self._hang_up()

    def _gemini_results(self, job: dict[str, Any], told: dict[str, Any], *, short: bool) -> dict[str, Any]:
        inlined = []
        for key, text, _ in job["requests"]:
            result = job["results"].get(key)
            if result is None:
                continue
            if result == "answered":
                answer: dict[str, Any] = {"response": reply_of("gemini", job["model"], text)}
            else:
                code = {"cancelled": 1, "expired": 4}.get(result, 3)
                answer = {"error": {"code": code, "message": f"it {result}"}}
            inlined.append({**answer, "metadata": {"key": key}})
        if short:
            inlined = inlined[: len(inlined) // 2]
        told["metadata"]["output"] = {"inlinedResponses": {"inlinedResponses": inlined}}
        return told


def _line(wire: str, key: str, result: str, reply: dict[str, Any] | None) -> dict[str, Any]:
    if wire == "anthropic":
        kinds = {"answered": "succeeded", "failed": "errored", "cancelled": "canceled", "expired": "expired"}
        told: dict[str, Any] = {"type": kinds[result]}
        if reply is not None:
            told["message"] = reply
        if result == "failed":
            inner = {"type": "invalid_request_error", "message": "it failed"}
            told["error"] = {"type": "error", "error": inner}
        return {"custom_id": key, "result": told}
    line: dict[str, Any] = {"id": f"line-{key}", "custom_id": key, "response": None, "error": None}
    if reply is not None:
        line["response"] = {"status_code": 200, "request_id": "req_1", "body": reply}
    elif result == "failed":
        failed = {"error": {"message": "it failed", "type": "invalid_request_error"}}
        line["response"] = {"status_code": 400, "request_id": "req_1", "body": failed}
    else:
        line["error"] = {"code": f"batch_{result}", "message": f"it {result}"}
    return line


def _describe(job: dict[str, Any]) -> dict[str, Any]:
    """The job object of its provider."""
    over = job["status"] not in ("running", "cancelling")
    results = list(job["results"].values())
    total, done = len(job["requests"]), results.count("answered")
    match job["wire"]:
        case "anthropic":
            counts = {name: results.count(name) for name in ("failed", "cancelled", "expired")}
            return {
                "id": job["id"], "type": "message_batch",
                "processing_status": "ended" if over else {"cancelling": "canceling"}.get(job["status"],
                    "in_progress"),
                "request_counts": {"processing": 0 if over else total, "succeeded": done,
                    "errored": counts["failed"] + (total - len(results) if over else 0),
                    "canceled": counts["cancelled"], "expired": counts["expired"]},
                "created_at": _rfc3339(job["created"]), "expires_at": _rfc3339(job["created"] + 86400),
                "cancel_initiated_at": None,
            }  # fmt: skip
        case "gemini":
            states = {"running": "RUNNING", "cancelling": "RUNNING", "completed": "SUCCEEDED"}
            return {
                "name": job["id"],
                "metadata": {"state": f"BATCH_STATE_{states.get(job['status'], job['status'].upper())}",
                    "displayName": job["mark"], "createTime": _rfc3339(job["created"]),
                    "batchStats": {"requestCount": str(total), "successfulRequestCount": str(done)}}, "done": over,
            }  # fmt: skip
        case "mistral":
            words = {
                "running": "RUNNING", "cancelling": "CANCELLATION_REQUESTED", "completed": "SUCCESS",
                "expired": "TIMEOUT_EXCEEDED",
            }  # fmt: skip
            return {
                "id": job["id"], "status": words.get(job["status"], job["status"].upper()),
                "metadata": {"callboard_batch": job["mark"]}, "created_at": int(job["created"]),
                "total_requests": total, "succeeded_requests": done, "failed_requests": len(results) - done,
                "errors": [{"message": "the file is wrong"}] if job["status"] == "failed" else [],
                **_files(job, "output_file", "error_file", over=over),
            }  # fmt: skip
        case _:
            problems = {"data": [{"code": "invalid_value", "message": "the file is wrong", "line": 1}]}
            return {
                "id": job["id"],
                "object": "batch",
                "status": {"running": "in_progress"}.get(job["status"], job["status"]),
                "metadata": {"callboard_batch": job["mark"]},
                "created_at": int(job["created"]),
                "request_counts": {"total": total, "completed": done, "failed": len(results) - done},
                "errors": problems if job["status"] == "failed" else None,
                **_files(job, "output_file_id", "error_file_id", over=over),
            }


def _files(job: dict[str, Any], output: str, error: str, *, over: bool) -> dict[str, str | None]:
    results = [result for result in job["results"].values() if result != "cancelled"]
    answered = over and "answered" in results
    others = over and any(result != "answered" for result in results)
    return {output: f"{job['id']}.output" if answered else None, error: f"{job['id']}.error" if others else None}


# -- for tests


class BatchServer(ServerProcess):
    """The server's process, as tests use it."""

    def __init__(self, folder: Path) -> None:
        super().__init__("tests.support.batch_server", folder)


@contextmanager
def batch_server(folder: Path) -> Iterator[BatchServer]:
    """Run a server within a block."""
    with BatchServer(folder) as server:
        yield server


def main() -> None:
    global BOOKS
    BOOKS = Books(Path(sys.argv[1]))
    serve(Handler, int(sys.argv[2]) if len(sys.argv) > 2 else 0)


if __name__ == "__main__":
    main()
