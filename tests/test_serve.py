"""`cotalk view`: what it answers, what it refuses, and its page in a real browser while a study runs."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import cotalk
from cotalk import cli, serve
from cotalk.errors import BadInput
from cotalk.serve import Site, host_name, link_out, listen
from test_watch import make_study, step, write
from toy import SETTINGS, toy_base, toy_grader, toy_tasks

LOCAL = "127.0.0.1:8000"
HOSTILE = "</script><script>document.title='hacked'</script><img src=x onerror=alert(1)> \u202e\ud800 `${7}`"


def chat(said: str, number: int = 1, task: str = "sum-0") -> dict[str, Any]:
    """A chat line of two seats that say the same thing once each."""
    message = {"credit": None, "cut": False, "heard_cut": False, "tokens": 3, "logprob": -1.0}
    grade = {"answer": said[:20], "strict": False, "lenient": False, "parsed": True, "notes": []}
    return {
        "step": number, "condition": "train", "repeat": 0, "task": task, "chat": 0, "order": "AB", "channel": "open",
        "view": "dialogue", "question": "How many apples are there?", "gold": "7",
        "hands": {"A": ["Ann has 3 apples."], "B": ["Bob has 4 apples."]}, "players": {"A": "learner", "B": "learner"},
        "messages": [{"seat": s, "turn": t, "said": said, "heard": said} | message for t, s in enumerate("AB")],
        "answers": {"A": grade, "B": grade}, "rewards": {"A": 0.0, "B": 0.0}, "reward": 0.0,
    }  # fmt: skip


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    """Two studies and what lies beside them."""
    root = tmp_path / "runs"
    for name in ("one", "two"):
        make_study(root / name)
        write(root / name / "runs/open-17/metrics.jsonl", {"step": 0, "dev/score": 0.5}, step(1), step(2))
        write(root / name / "runs/open-17/chats.jsonl", chat(f"first of {name}"), chat(f"last of {name}", 2))
        write(root / name / "runs/open-17/dev.jsonl", chat(f"dev of {name}", 0))
    (root / "one" / "report.html").write_text("<p>the report of one</p>")
    (tmp_path / "secret.txt").write_text("the secret")
    return root


def get(site: Site, path: str, query: str = "", host: str = LOCAL, method: str = "GET") -> serve.Answer:
    return site.answer(method, host, path, query)


def look(site: Site, name: str = "") -> dict[str, Any]:
    answer = get(site, "/api/look", f"id={name}")
    assert answer.status == "200 OK", answer.body
    return json.loads(answer.body)


# --- what is answered -------------------------------------------------------------------------------------------


def test_a_look_lists_every_study_and_tells_one_whole(studies: Path) -> None:
    found = look(Site(studies), "two")
    assert [(s["id"], s["finished"], s["problem"]) for s in found["studies"]] == [
        ("one", False, ""),
        ("two", False, ""),
    ]
    study = found["study"]
    assert (
        study["id"] == "two"
        and study["report"] is False
        and look(Site(studies), "one")["study"]["report"] is True
    )
    open_17, base = study["runs"]
    assert (open_17["name"], open_17["phase"], open_17["step"], open_17["steps"]) == (
        "open-17",
        "training",
        2,
        4,
    )
    assert (open_17["reward"], open_17["dev"], open_17["left"], base["phase"]) == (0.2, 0.5, 22.0, "waiting")
    reward = next(c for c in study["curves"] if c["key"] == "reward")
    assert reward["runs"] == [{"run": "open-17", "arm": "open", "points": [[1, 0.1], [2, 0.2]]}]


def test_the_newest_chats_come_first_and_only_a_few_of_them(studies: Path) -> None:
    path = studies / "one/runs/open-17/chats.jsonl"
    write(path, *(chat(f"number {i}", i) for i in range(50)))
    with path.open("a") as stream:
        stream.write('{"step": 51, "half a li')
    newest = look(Site(studies), "one")["study"]["newest"]
    assert [one["step"] for one in newest] == [49, 48]
    said = newest[0]["chat"]["messages"][0]["said"]
    assert "".join(s if isinstance(s, str) else s[0] for s in said) == "number 49"


def test_without_a_name_the_first_study_is_told_and_nothing_where_there_is_none(
    studies: Path, tmp_path: Path
) -> None:
    assert look(Site(studies))["study"]["id"] == "one"
    (tmp_path / "empty").mkdir()
    site = Site(tmp_path / "empty")
    assert look(site) == {"studies": [], "study": None}
    assert json.loads(get(site, "/api/chats").body)["viewer"] is None
    assert get(site, "/").status == "200 OK"


def test_the_viewer_is_given_the_chats_that_lie_there_and_new_ones_when_they_come(studies: Path) -> None:
    site = Site(studies)
    first = json.loads(get(site, "/api/chats", "id=one").body)
    assert [p["label"] for p in first["viewer"]["passes"]] == ["step 0"]
    assert first["version"] == look(site, "one")["study"]["chats"]
    write(studies / "one/runs/open-17/dev.jsonl", chat("before", 0), chat("after", 10))
    assert look(site, "one")["study"]["chats"] != first["version"]
    second = json.loads(get(site, "/api/chats", "id=one").body)
    assert [p["label"] for p in second["viewer"]["passes"]] == ["step 0", "step 10"]


def test_the_viewer_s_data_is_made_once_for_all_who_ask(
    studies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, real = [], serve.chats.viewer_of
    monkeypatch.setattr(serve.chats, "viewer_of", lambda path: made.append(path) or real(path))
    site = Site(studies)
    for _ in range(3):
        get(site, "/api/chats", "id=one")
        get(site, "/api/chats", "id=two")
    assert made == [studies / "one", studies / "two"]


def test_a_run_that_stands_alone_has_the_viewer_too(studies: Path) -> None:
    alone = studies / "one/runs/open-17"
    (alone / "config.toml").write_text("steps = 4\n")
    site = Site(alone)
    assert look(site)["study"]["alone"] is True
    (each,) = json.loads(get(site, "/api/chats").body)["viewer"]["passes"]
    assert (each["group"], each["label"]) == ("open-17", "step 0")


def test_numbers_that_json_does_not_know_are_left_out(studies: Path) -> None:
    write(
        studies / "one/runs/open-17/metrics.jsonl",
        step(1, reward=float("nan")),
        step(2, reward=float("inf")),
        step(3),
    )
    write(
        studies / "one/runs/open-17/chats.jsonl", chat("x") | {"reward": float("nan"), "step": float("inf")}
    )
    body = get(Site(studies), "/api/look", "id=one").body
    assert b"NaN" not in body and b"Infinity" not in body and len(json.loads(body)["study"]["newest"]) == 1
    assert next(c for c in json.loads(body)["study"]["curves"] if c["key"] == "reward")["runs"][0][
        "points"
    ] == [[3, 0.3]]


def test_a_study_that_has_only_begun_has_nothing_to_show_yet(tmp_path: Path) -> None:
    make_study(tmp_path)
    site = Site(tmp_path)
    study = look(site)["study"]
    assert (study["share"], study["left"], study["newest"], study["finished"]) == (0.0, None, [], False)
    assert json.loads(get(site, "/api/chats").body) == {
        "version": study["chats"],
        "viewer": None,
        "problem": "",
    }


def test_a_study_that_cannot_be_read_is_told_as_a_problem(studies: Path) -> None:
    (studies / "one/study.toml").write_text("[run]\nstepz = 1\n")
    found = look(Site(studies), "one")
    assert "did you mean 'steps'" in found["study"]["problem"] and found["study"]["runs"] == []
    assert json.loads(get(Site(studies), "/api/chats", "id=one").body)["viewer"] is None


def test_nothing_is_written(studies: Path) -> None:
    def everything() -> list[tuple[str, int, bytes]]:
        return sorted(
            (str(p), p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in studies.rglob("*")
        )

    before, site = everything(), Site(studies)
    for path in ("/", "/api/look", "/api/chats", "/report"):
        assert get(site, path, "id=one" if path != "/" else "").status == "200 OK"
    assert everything() == before


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [
    "127.0.0.1", "127.0.0.1:8000", "localhost", "LOCALHOST:80", "[::1]:8000", " localhost:1 ",
])  # fmt: skip
def test_names_of_this_machine_are_answered(studies: Path, host: str) -> None:
    assert get(Site(studies), "/api/look", host=host).status == "200 OK"


@pytest.mark.parametrize("host", [
    "", "evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example:80",
    "evil.example:localhost", "localhost@evil.example", "127.0.0.2", "0.0.0.0", "[::]", "::1", "localhost:80:evil",
    "127.0.0.1, evil.example",
])  # fmt: skip
def test_a_page_whose_name_was_turned_to_this_machine_reads_nothing(studies: Path, host: str) -> None:
    for path in ("/", "/api/look", "/api/chats", "/report"):
        answer = get(Site(studies), path, host=host)
        assert answer.status.startswith("421") and b"one" not in answer.body


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "get", ""]
)
def test_only_reading_is_allowed(studies: Path, method: str) -> None:
    assert get(Site(studies), "/api/look", method=method).status.startswith("405")


@pytest.mark.parametrize(("path", "query"), [
    ("/../secret.txt", ""), ("/secret.txt", ""), ("/one/report.html", ""), ("//etc/passwd", ""), ("/etc/passwd", ""),
    ("/api/look/../../secret.txt", ""), ("/api", ""), ("", ""), ("/api/look", "id=.."), ("/api/look", "id=../runs/one"),
    ("/api/look", "id=/etc"), ("/api/look", "id=one/.."), ("/api/look", "id=one/"), ("/api/look", "id=one%00"),
    ("/api/chats", "id=%2e%2e"), ("/report", "id=two"), ("/report", "id=../secret.txt"),
    ("/report", "id=one/report.html"),
])  # fmt: skip
def test_what_is_not_listed_is_not_found(studies: Path, path: str, query: str) -> None:
    answer = get(Site(studies), path, query)
    assert answer.status == "404 Not Found" and b"secret" not in answer.body


def test_links_that_lead_out_are_not_followed(studies: Path, tmp_path: Path) -> None:
    """The line behind the link is a chat that could be shown."""
    write(tmp_path / "outside.jsonl", chat("the secret"))
    one = studies / "one"
    for inner in ("scores/base_open/base.jsonl", "runs/open-17/chats.jsonl"):
        (one / inner).parent.mkdir(parents=True, exist_ok=True)
        (one / inner).unlink(missing_ok=True)
        (one / inner).symlink_to(tmp_path / "outside.jsonl")
    (one / "report.html").unlink()
    (one / "report.html").symlink_to(tmp_path / "secret.txt")
    site = Site(studies)
    assert link_out(site.watch.root, one) == "one/report.html"
    told = json.loads(get(site, "/api/chats", "id=one").body)
    assert told["viewer"] is None and "leads out" in told["problem"]
    assert get(site, "/report", "id=one").status == "404 Not Found"
    for path in ("/api/look", "/api/chats", "/report"):
        assert b"the secret" not in get(site, path, "id=one").body
    assert link_out(site.watch.root, studies / "two") == ""


def test_a_directory_behind_a_link_hides_nothing_from_the_search(studies: Path, tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    (studies / "one/scores").symlink_to(tmp_path / "away")
    assert link_out(studies.resolve(), studies / "one") == "one/scores"


@pytest.mark.parametrize(
    ("header", "name"),
    [("localhost:80", "localhost"), ("[::1]:80", "[::1]"), ("[::1]", "[::1]"), ("A:b", "a:b"), ("", "")],
)
def test_a_host_is_named_without_its_port(header: str, name: str) -> None:
    assert host_name(header) == name


# --- what goes with every answer -----------------------------------------------------------------------------------


def called(site: Site, path: str, query: str = "", **more: str) -> tuple[str, dict[str, str], bytes]:
    """Through WSGI, as the server does it."""
    got: list[Any] = []
    environ = {"REQUEST_METHOD": "GET", "HTTP_HOST": LOCAL, "PATH_INFO": path, "QUERY_STRING": query} | more
    body = b"".join(site(environ, lambda status, headers: got.extend((status, dict(headers)))))
    return got[0], got[1], body


def test_no_other_origin_may_read_frame_or_embed(studies: Path) -> None:
    site = Site(studies)
    for path in ("/", "/api/look", "/api/chats", "/report", "/nothing"):
        _, headers, body = called(
            site, path, "" if path == "/" else "id=one", HTTP_ORIGIN="https://evil.example"
        )
        assert not [name for name in headers if name.startswith("Access-Control")]
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
        assert (
            headers["Cross-Origin-Resource-Policy"] == "same-origin"
            and headers["Cache-Control"] == "no-store"
        )
        assert headers["Content-Length"] == str(len(body))


def test_head_has_no_body(studies: Path) -> None:
    status, headers, body = called(Site(studies), "/api/look", REQUEST_METHOD="HEAD")
    assert status == "200 OK" and int(headers["Content-Length"]) > 0 and body == b""


def test_a_report_is_shut_into_a_sandbox_of_its_own(studies: Path) -> None:
    """A directory may come from somebody else: its report may draw itself, and neither ask this server nor another."""
    status, headers, body = called(Site(studies), "/report", "id=one")
    policy = headers["Content-Security-Policy"]
    assert status == "200 OK" and b"the report of one" in body
    assert (
        policy.startswith("sandbox allow-scripts;")
        and "same-origin" not in policy
        and "connect-src" not in policy
    )


class Parts(HTMLParser):
    """The texts of a page's scripts and styles, and every attribute."""

    def __init__(self, html: str):
        super().__init__()
        self.inside, self.texts, self.attributes = "", {"script": "", "style": ""}, []  # type: ignore[var-annotated]
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag if tag in self.texts else ""
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[self.inside] += data


def test_the_page_s_scripts_and_styles_are_the_pinned_ones_and_all_there_are(studies: Path) -> None:
    page = Site(studies).page
    parts = Parts(page.body.decode())
    for kind in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(parts.texts[kind].encode()).digest()).decode()
        assert re.search(rf"{kind}-src 'sha256-{re.escape(digest)}';", page.policy)
    names = {name for name, _ in parts.attributes}
    assert (
        "unsafe" not in page.policy and "style" not in names and not [n for n in names if n.startswith("on")]
    )
    assert not [v for n, v in parts.attributes if n in ("src", "href") and v and not v.startswith("data:")]


def test_a_directory_s_name_is_text_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "<b>runs&").mkdir()
    page = Site(tmp_path / "<b>runs&").page.body
    assert b"&lt;b&gt;runs&amp;" in page and b"<b>" not in page


def test_every_curve_has_a_heading() -> None:
    assert set(serve.HEADINGS) == set(serve.CURVES)


# --- listening --------------------------------------------------------------------------------------------------


@pytest.fixture
def server(studies: Path) -> Iterator[Any]:
    with running(studies) as found:
        yield found


class running:
    """A server of a directory in a thread of this process."""

    def __init__(self, root: Path):
        self.server = listen(root)
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with suppress(OSError):  # its sockets are closed under it at the end
            self.server.run()

    def __enter__(self) -> Any:
        self.thread.start()
        return self.server

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.server.close()
        self.thread.join(5)


def raw(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        found = b""
        try:
            connection.sendall(request)
            while piece := connection.recv(65536):
                found += piece
        except ConnectionError:  # it was hung up on
            pass
        return found


GOOD = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def test_it_listens_on_this_machine_alone(server: Any) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert int(server.effective_port) > 0
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", server.effective_port), timeout=2)


@pytest.mark.parametrize("target", [
    b"/../secret.txt", b"/..%2fsecret.txt", b"/%2e%2e/secret.txt", b"/..\\secret.txt", b"//secret.txt",
    b"/api/look?id=..%2f", b"/report?id=..", b"/api/look%00", b"http://evil.example/secret.txt", b"*",
])  # fmt: skip
def test_no_spelling_of_a_path_leads_out(server: Any, target: bytes) -> None:
    answer = raw(
        server.effective_port, b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    assert re.match(rb"HTTP/1\.1 (404|400) ", answer) and b"the secret" not in answer


def test_a_request_without_a_host_or_with_too_much_is_refused(server: Any) -> None:
    port = server.effective_port
    assert b" 421 " in raw(port, b"GET / HTTP/1.0\r\n\r\n").splitlines()[0]
    large = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n"
    long = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + b"a" * 100_000
    for request in (large, long):
        assert re.match(rb"HTTP/1\.[01] (431|413) |$", raw(port, request))
    assert b" 200 " in raw(port, GOOD).splitlines()[0]  # and it goes on


def test_the_host_that_counts_is_the_header_also_for_a_whole_address(server: Any) -> None:
    answer = raw(
        server.effective_port,
        b"GET http://localhost/api/look HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    )
    assert b" 421 " in answer.splitlines()[0]


def test_ports_that_cannot_be_had_are_refused(studies: Path, server: Any) -> None:
    with pytest.raises(BadInput, match="leave it out for a free one"):
        listen(studies, int(server.effective_port))
    with pytest.raises(BadInput, match="65535"):
        listen(studies, 70000)
    assert cli.main(["view", str(studies / "none")]) == 2


@pytest.mark.slow
def test_the_command_prints_where_it_listens_and_ends_with_ctrl_c(studies: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(cotalk.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-m", "cotalk.cli", "view", str(studies)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        port = int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/", url)[1])  # type: ignore[index]
        assert b" 200 OK" in raw(port, GOOD).splitlines()[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


# --- in a browser -----------------------------------------------------------------------------------------------


class Visit:
    """A page of the server, with everything that it complained of and asked for (conftest.Tab)."""

    def __init__(self, tab: Any, server: Any, query: str = "", **how: Any):
        self.home = address(server)
        self.tab = tab(**how)
        self.page = self.tab.page
        self.page.goto(self.home + query)
        self.page.wait_for_selector("body[data-looks]", timeout=30_000)

    def js(self, expression: str) -> Any:
        return self.page.evaluate(expression)

    def until(self, expression: str, seconds: int = 120) -> None:
        """Asks again and again (playwright's own wait needs `eval`, which the page's policy forbids)."""
        end = time.monotonic() + seconds
        while not self.js(expression):
            assert time.monotonic() < end, f"{expression} did not come true in {seconds} s"
            self.page.wait_for_timeout(100)

    def cells(self, run: str) -> list[str]:
        return self.page.locator("#runs tbody tr", has_text=run).locator("th, td").all_inner_texts()

    def close(self) -> None:
        assert self.tab.complaints == []
        assert [url for url in self.tab.requests if not url.startswith((self.home, "data:"))] == []
        self.page.close()


def address(server: Any) -> str:
    return f"http://127.0.0.1:{server.effective_port}/"


POINTS = "Number(document.querySelector('[data-key=reward] .line')?.dataset.points || 0)"


@pytest.mark.slow
def test_curves_grow_and_the_table_moves_while_a_study_runs(tab: Any, tmp_path: Path) -> None:
    settings = SETTINGS | dict(
        base=str(toy_base(tmp_path / "base")), tasks=str(toy_tasks(tmp_path / "tasks.jsonl")), device="cpu",
        grade=toy_grader(tmp_path / "grader.py"), steps=40, message_tokens=3, answer_tokens=4,
    )  # fmt: skip
    run = "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
    (tmp_path / "toy.toml").write_text(
        f"seeds = [17, 18]\n[run]\n{run}\n[arms.open]\n[evaluate]\nrepeats = 1\n"
    )
    out = tmp_path / "runs" / "toy"
    out.mkdir(parents=True)
    environment = os.environ | {"PYTHONPATH": str(Path(cotalk.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    study = subprocess.Popen(
        [sys.executable, "-m", "cotalk.cli", "study", str(tmp_path / "toy.toml"), "--out", str(out), "--workers", "1"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        with running(tmp_path / "runs") as server:
            visit = Visit(tab, server)
            visit.until(f"{POINTS} >= 2")
            first, share = visit.js(POINTS), visit.page.get_attribute("#bar", "aria-valuenow")
            assert visit.cells("open-17")[7].startswith("training") and "left" in visit.page.inner_text(
                "#left"
            )
            visit.until(f"{POINTS} > {first}")
            assert study.poll() is None  # it grew while the study was still at work
            visit.until("document.title.startsWith('done')", 240)
            assert visit.page.get_attribute("#bar", "aria-valuenow") == "100" != share
            lines = [
                json.loads(line) for line in (out / "runs/open-17/metrics.jsonl").read_text().splitlines()
            ]
            trained = [line for line in lines if "reward" in line]
            assert visit.js(POINTS) == len(trained) == 40
            name, _, steps, passes, reward, *_ = visit.cells("open-17")
            assert (name, steps, passes, reward) == (
                "open-17",
                "40/40",
                "6/6",
                f"{trained[-1]['reward']:.2f}",
            )
            assert visit.page.locator("#cards article").count() == 4 and visit.page.is_visible(
                "#viewer .v-pane"
            )
            visit.page.wait_for_selector("#report", state="visible")
            visit.close()
        assert study.wait(60) == 0, study.stderr.read()  # type: ignore[union-attr]
    finally:
        study.kill()
        study.wait()


def test_what_a_model_wrote_is_text_and_breaks_nothing(tab: Any, studies: Path) -> None:
    one = studies / "one"
    write(one / "runs/open-17/chats.jsonl", chat(HOSTILE), chat("x" * 100_000, 2))
    write(one / "runs/open-17/dev.jsonl", chat(HOSTILE, 0))
    write(one / "runs/open-17/failed.json", {"reason": HOSTILE})
    with running(studies) as server:
        visit = Visit(tab, server, "?id=one", viewport={"width": 400, "height": 800})
        visit.page.wait_for_selector("#viewer .v-message")
        assert (
            visit.page.locator("#cards article .v-trail").count() == 2
        )  # a card shows all that the viewer shows
        for part in ("#cards", "#viewer"):
            text = visit.page.inner_text(part)
            assert "<script>document.title='hacked'</script>" in text and "[U+202E]" in text
        assert "<img src=x" in visit.page.inner_text("#runs")
        assert "hacked" not in visit.page.title()
        assert visit.js("document.querySelectorAll('main script, main img').length") == 0
        assert visit.js("document.documentElement.scrollWidth") <= 400
        visit.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_narrow_screen_and_follows_light_and_dark(
    tab: Any, studies: Path, scheme: str
) -> None:
    with running(studies) as server:
        visit = Visit(tab, server, viewport={"width": 400, "height": 800}, color_scheme=scheme)
        assert visit.js("document.documentElement.scrollWidth") <= 400
        red = int(re.findall(r"\d+", visit.js("getComputedStyle(document.body).backgroundColor"))[0])
        assert (red > 200) == (scheme == "light")
        visit.close()


def test_another_study_is_one_click_away_and_the_curves_are_its_own(tab: Any, studies: Path) -> None:
    write(studies / "two/runs/open-17/metrics.jsonl", *(step(i) for i in range(1, 4)))
    with running(studies) as server:
        visit = Visit(tab, server)
        assert visit.page.inner_text("#name") == "one" and visit.js(POINTS) == 2
        visit.page.click("#studies a:has-text('two')")
        visit.page.wait_for_selector("h1:has-text('two')")
        assert visit.js(POINTS) == 3
        assert visit.page.get_attribute("#studies a:has-text('two')", "aria-current") == "page"
        visit.close()


@pytest.mark.slow
def test_a_report_s_scripts_run_and_can_ask_nobody_for_anything(tab: Any, studies: Path) -> None:
    """It may be another's directory: the report draws itself, and neither reads this server nor carries words away."""
    script = "<script>document.title = 'ran'; fetch('/api/look').then(() => { document.title = 'read'; }, () => {});"
    script += "document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/carry'}));</script>"
    (studies / "one/report.html").write_text(f"<!doctype html><title>x</title><body>{script}")
    with running(studies) as server:
        found = tab()
        found.page.goto(address(server) + "report?id=one")
        found.page.wait_for_timeout(500)
        assert found.page.title() == "ran"
        assert found.page.evaluate("origin") == "null"
        assert [c for c in found.complaints if "api/look" in c] and [
            c for c in found.complaints if "carry" in c
        ]


@pytest.mark.slow
def test_a_server_that_is_gone_is_said_so(tab: Any, studies: Path) -> None:
    with running(studies) as server:
        visit = Visit(tab, server)
        assert visit.page.is_hidden("#problem")
        visit.page.route("**/api/*", lambda route: route.abort())
        visit.page.wait_for_selector("#problem:has-text('Is cotalk view still running?')", timeout=15_000)
        visit.page.unroute_all()
        visit.page.wait_for_selector("#problem", state="hidden", timeout=20_000)
        visit.page.close()


@pytest.mark.slow
def test_another_site_can_neither_read_nor_frame_it(tab: Any, studies: Path) -> None:
    """Another port is another origin; "localhost" is another site than 127.0.0.1."""
    with running(studies) as server, running(studies) as other:
        page = tab().page
        page.goto(f"http://localhost:{other.effective_port}/nothing")
        page.route("**/nothing", lambda route: route.fulfill(body="<p>evil</p>", content_type="text/html"))
        page.reload()  # the same origin, with a page of our own and no policy
        read = "fetch(url).then((r) => r.text(), () => 'refused')"
        assert page.evaluate(f"(url) => {read}", address(server) + "api/look") == "refused"
        embedded = (
            "new Promise((done) => { const s = document.createElement('script'); s.onload = () => done('loaded');"
            " s.onerror = () => done('refused'); s.src = url; document.head.append(s); })"
        )
        assert page.evaluate(f"(url) => {embedded}", address(server) + "api/look") == "refused"
        page.evaluate(
            "(url) => { const f = document.createElement('iframe'); f.src = url; document.body.append(f); }",
            address(server),
        )
        page.wait_for_timeout(1000)
        assert "<main" not in page.frames[1].content()
        page.close()
