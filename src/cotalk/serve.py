"""`cotalk view DIR`: a directory of studies and runs in the browser, also while they are being written.

One page (serve.js draws it) asks a few read-only addresses again and again:

    /                    the page, all in one: its scripts and styles are pinned by hash
    /api/look?id=ID      every study in short; one of them whole: states, time left, curves, newest chats
    /api/chats?id=ID     the chat viewer's data (report/chats.py)
    /report?id=ID        the study's report.html, shut into a sandbox

What keeps it to itself: it listens on 127.0.0.1 alone and answers GET and HEAD alone; a request's Host must be a name
of this machine, so that a web page whose name was turned to 127.0.0.1 (DNS rebinding) reads nothing; no other origin
is ever allowed to read (no CORS header); an address names a study by an id that is looked up in what lies there, never
a path, and links that lead out of the directory are not followed (watch.py). What models wrote goes out as JSON and
becomes text nodes. Other users of the same machine can reach it while it runs, as they can any port of 127.0.0.1.

The server is waitress: no dependencies, a bounded number of threads and bytes, and made to face a network, which
http.server says of itself that it is not. Left out: writing anything, and computing anything that watch.py does not.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jinja2
import waitress
from markupsafe import Markup

from cotalk.errors import BadInput
from cotalk.report import chats
from cotalk.report.page import policy
from cotalk.report.read import thinned
from cotalk.watch import CURVES, Json, RunState, StudyState, Watch, inside, last_lines, number

HERE = Path(__file__).parent
STYLES = ("report/theme.css", "report/viewer.css", "serve.css")
SCRIPTS = ("report/viewer.js", "serve.js")
HOSTS = ("127.0.0.1", "localhost", "[::1]")
ADDRESS = "127.0.0.1"
THREADS = 4
HEADINGS = {  # of CURVES: (heading, whether it is a share from 0 to 1)
    "reward": ("Reward in training", True),
    "dev/score": ("Dev score, greedy", True),
    "dev/sends": ("Sends, dev", True),
    "dev/uses": ("Uses, dev", True),
    "message_tokens": ("Tokens in a message", False),
    "groups/flat": ("Flat groups (nothing to learn from)", True),
    "cut": ("Messages cut off by their budget", True),
}
NEWEST_RUNS, NEWEST_CHATS, NEWEST_BYTES = 3, 2, 1 << 20

SANDBOX = (  # a report draws itself; it may ask nobody for anything, this server least of all
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
)
PLAIN = "default-src 'none'"
JSON = "application/json"
HEADERS = [
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
]


@dataclass(frozen=True)
class Answer:
    """What goes out: a status line, a kind of content, the content, and what it may do in a browser."""

    status: str
    kind: str
    body: bytes
    policy: str = PLAIN


class Site:
    """The WSGI application over one directory."""

    def __init__(self, root: Path):
        self.watch = Watch(root)
        self.page = page(self.watch.root.name)
        self._chats: dict[str, tuple[str, bytes]] = {}
        self._lock = threading.Lock()

    def __call__(self, environ: Mapping[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        answer = self.answer(
            environ["REQUEST_METHOD"],
            environ.get("HTTP_HOST", ""),
            environ.get("PATH_INFO", ""),
            environ.get("QUERY_STRING", ""),
        )
        about = [
            ("Content-Type", answer.kind),
            ("Content-Length", str(len(answer.body))),
            ("Content-Security-Policy", answer.policy),
        ]
        start(answer.status, about + HEADERS)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer.body]

    def answer(self, method: str, host: str, path: str, query: str) -> Answer:
        """The answer to one request; everything that is not named here is not found."""
        if host_name(host) not in HOSTS:
            return _told("421 Misdirected Request", f"this server answers to {' and '.join(HOSTS)} only")
        if method not in ("GET", "HEAD"):
            return _told("405 Method Not Allowed", "this server is read-only")
        if path == "/":
            return self.page
        asked = {"/api/look": self._look, "/api/chats": self._viewer, "/report": self._report}.get(path)
        if asked is None:
            return _told("404 Not Found", "no such address")
        studies = self.watch.look()
        wanted = parse_qs(query, max_num_fields=8).get("id", [""])[0]
        study = next((s for s in studies if s.id == wanted), None)
        if wanted and study is None:
            return _told("404 Not Found", "no such study here")
        return asked(studies, study or (studies[0] if studies else None))

    def _look(self, studies: list[StudyState], study: StudyState | None) -> Answer:
        return _json({"studies": [_short(s) for s in studies], "study": study and self._whole(study)})

    def _whole(self, study: StudyState) -> Json:
        return _short(study) | {
            "report": inside(self.watch.root, study.path / "report.html"),
            "runs": [_run(run) for run in study.runs],
            "curves": [_curves(study, key) for key in CURVES],
            "newest": self._newest(study),
            "chats": self._version(study),
        }

    def _newest(self, study: StudyState) -> list[Json]:
        """The last chats of training of the runs that wrote last, newest first."""
        files = [
            (path.stat().st_mtime, run.name, path)
            for run in study.runs
            if (path := self.watch.chat_files(study, run).get("train"))
        ]
        found = []
        for _, name, path in sorted(files, reverse=True)[:NEWEST_RUNS]:
            lines, _ = last_lines(path, NEWEST_CHATS, NEWEST_BYTES)
            for line in reversed([line for line in lines if chats.is_chat(line)]):
                about = {"run": name, "step": number(line.get("step")), "reward": number(line.get("reward"))}
                found.append(about | {"task": chats.shown_task(line), "chat": chats.shown_chat(line)})
        return found

    def _version(self, study: StudyState) -> str:
        """Another one whenever chats were added to what the viewer shows."""
        sizes = [
            (str(path), path.stat().st_size)
            for run in study.runs
            for name, path in self.watch.chat_files(study, run).items()
            if name != "train"
        ]
        return hashlib.sha256(repr(sorted(sizes)).encode()).hexdigest()[:16]

    def _viewer(self, _: list[StudyState], study: StudyState | None) -> Answer:
        if study is None or study.problem:
            return _json({"version": "", "viewer": None, "problem": ""})
        with self._lock:  # it takes a second or two of work: once for all who ask
            version = self._version(study)
            if self._chats.get(study.id, ("", b""))[0] != version:
                viewer, problem = self._viewer_data(study)
                found = _json({"version": version, "viewer": viewer, "problem": problem})
                self._chats[study.id] = version, found.body
            return Answer("200 OK", JSON, self._chats[study.id][1])

    def _viewer_data(self, study: StudyState) -> tuple[Json | None, str]:
        """The viewer's data (None: there is nothing to show yet), or why it is not shown."""
        if away := link_out(self.watch.root, study.path):
            return None, f"{away} is a link that leads out of this directory: its chats are not shown"
        if not any(set(self.watch.chat_files(study, run)) - {"train"} for run in study.runs):
            return None, ""
        if study.alone:
            data = chats.show(_passes(study.name, last_lines(study.path / "dev.jsonl")[0]))
        else:
            data = chats.viewer_of(study.path)
        return (data if data["passes"] else None), ""

    def _report(self, _: list[StudyState], study: StudyState | None) -> Answer:
        path = study.path / "report.html" if study else None
        if path is None or not inside(self.watch.root, path):
            return _told("404 Not Found", "no report here yet")
        return Answer("200 OK", "text/html; charset=utf-8", path.read_bytes(), SANDBOX)


# --- what goes out ----------------------------------------------------------------------------------------------


def _short(study: StudyState) -> Json:
    return {
        "id": study.id,
        "name": study.name,
        "alone": study.alone,
        "share": study.share,
        "left": study.left,
        "finished": study.finished,
        "working": sum(run.working for run in study.runs),
        "problem": study.problem,
    }


def _run(run: RunState) -> Json:
    keys = (
        "name", "arm", "phase", "step", "steps", "passes", "of_passes", "reward", "chats", "dev", "dev_tasks",
        "tokens_per_second", "left", "quiet", "reason", "working",
    )  # fmt: skip
    return {key: getattr(run, key) for key in keys} | {"share": run.done / run.total if run.total else 0.0}


def _curves(study: StudyState, key: str) -> Json:
    heading, share = HEADINGS[key]
    runs = [
        {"run": run.name, "arm": run.arm or run.name, "points": run.curves[key]}
        for run in study.runs
        if key in run.curves
    ]
    return {"key": key, "heading": heading, "share": share, "runs": runs}


def _passes(name: str, lines: list[Json]) -> list[chats.Pass]:
    """The dev tasks of a run that stands alone, at each recorded step, for the viewer."""
    steps: dict[int, chats.Lines] = {}
    for line in lines:
        if chats.is_chat(line) and isinstance(line.get("step"), int):
            steps.setdefault(line["step"], {})[line["task"]] = line
    shown = thinned(sorted(steps), chats.STEPS)
    return [chats.Pass(f"{name}/{step}", "training", name, f"step {step}", steps[step]) for step in shown]


def _json(value: Json) -> Answer:
    return Answer("200 OK", JSON, json.dumps(value, allow_nan=False).encode())


def _told(status: str, words: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{words}\n".encode())


def host_name(host: str) -> str:
    """A Host header without its port, in small letters: "LOCALHOST:80" -> "localhost", "[::1]:80" -> "[::1]"."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdigit() else host.strip().lower()


def link_out(root: Path, directory: Path) -> str:
    """The first symbolic link in a directory that leads out of the root, "" if none does."""
    for folder, inner, files in os.walk(directory):
        for name in sorted([*inner, *files]):
            path = Path(folder, name)
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                return path.relative_to(root).as_posix()
    return ""


def page(name: str) -> Answer:
    """The page with its styles and scripts in it, and the policy that lets no others run and no other host be asked."""
    style, script = (
        "\n".join((HERE / file).read_text(encoding="utf-8") for file in files) for files in (STYLES, SCRIPTS)
    )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.StrictUndefined
    )
    html = environment.get_template("serve.html.jinja").render(
        name=name, style=Markup(style), script=Markup(script)
    )
    allowed = policy([style], [script]) + "; connect-src 'self'; frame-ancestors 'none'"
    return Answer("200 OK", "text/html; charset=utf-8", html.encode(), allowed)


# --- listening --------------------------------------------------------------------------------------------------


def listen(root: Path, port: int = 0) -> Any:
    """A waitress server on 127.0.0.1, not yet running: `.effective_port`, `.run()`, `.close()`. Port 0: a free one."""
    site = Site(root)
    if not 0 <= port < 1 << 16:
        raise BadInput(f"--port {port}: expected 0 (a free one) to 65535", "cli/number")
    try:
        return waitress.create_server(
            site, host=ADDRESS, port=port, threads=THREADS, ident="cotalk", max_request_body_size=1024,
            max_request_header_size=1 << 14, connection_limit=64, channel_timeout=30,
        )  # fmt: skip
    except OSError as error:
        raise BadInput(
            f"--port {port} cannot be listened on ({error.strerror}); leave it out for a free one",
            "server/port",
        ) from error
