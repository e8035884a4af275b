"""`make demo`: two agents share one broker, and everything that can happen to an eval happens to them.

Nothing here is printed that did not come back over the wire. The broker and its directory are its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO

from replctl import Client, ReplError, Result

LIMITS = ["limits.max-concurrent-evals=2", "limits.max-queued-evals=1", "limits.interrupt-grace-ms=500"]

LOAD = """
import random, sqlite3
rows = random.Random(1)
db = sqlite3.connect(":memory:")
db.execute("create table orders (customer text, amount real)")
db.executemany("insert into orders values (?, ?)",
               [(f"c{rows.randrange(50)}", round(rows.expovariate(1 / 40), 2)) for _ in range(100_000)])
db.execute("select count(*), round(sum(amount), 2) from orders").fetchone()
"""
TOP = "db.execute('select customer, round(sum(amount)) s from orders group by 1 order by s desc limit 3').fetchall()"
REPORT = """
import time
for quarter in range(1, 5):
    share = db.execute("select round(avg(amount), 2) from orders where rowid % 4 = ?", [quarter % 4]).fetchone()[0]
    print(f"quarter {quarter}: average order {share}")
    time.sleep(0.2)
"""
MODULE = """
from pathlib import Path
import importlib, sys, unittest
Path("slug.py").write_text("def slug(text):\\n    return text.lower().replace(' ', '-')\\n")
sys.path.insert(0, ".")
import slug
class Slugs(unittest.TestCase):
    def test_words(self): self.assertEqual(slug.slug("A Fine Day"), "a-fine-day")
    def test_marks(self): self.assertEqual(slug.slug("Hello, World!"), "hello-world")
def check():
    importlib.reload(slug)
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(Slugs)
    return unittest.TextTestRunner(stream=sys.stdout, verbosity=0).run(suite)
check().wasSuccessful()
"""
FIX = """
words = "re.findall('[a-z0-9]+', text.lower())"
Path("slug.py").write_text(f"import re\\ndef slug(text):\\n    return '-'.join({words})\\n")
check().wasSuccessful()
"""

_print_lock = threading.Lock()


def show(agent: str, text: str) -> None:
    """Print the lines of a text, each under the agent's name."""
    with _print_lock:
        for line in text.rstrip("\n").splitlines():
            print(f"{agent:>9} | {line}", flush=True)


def show_result(agent: str, result: Result) -> Result:
    """Print the result of an eval as the agent gets it."""
    if result.value not in (None, "None"):
        show(agent, f"=> {result.value}")
    facts = [f"status {' '.join(result.status)}", f"state {result.state}", f"epoch {result.epoch}"]
    if result.cause:
        facts.append(f"cause: {result.cause}")
    elif result.ex is not None:
        facts.append(f"{result.ex.type}: {result.ex.message}")
    show(agent, f"   [{', '.join(facts)}; {1000 * (result.duration or 0):.1f} ms]")
    return result


def run(client: Client, code: str, session: str, description: str, timeout: float | None = None) -> Result:
    """Say what is about to be done, do it with live output, show what came back."""
    agent = client.agent or "?"
    show(agent, f"-- {description}")
    result = client.eval(code, session, timeout, on_output=lambda _, text: show(agent, text), cwd=os.getcwd())
    return show_result(agent, result)


def expect(holds: bool, what: str) -> None:
    """End the demonstration where an expectation does not hold."""
    if not holds:
        raise SystemExit(f"demo: this did not hold: {what}")


def heading(text: str) -> None:
    print(f"\n== {text}", flush=True)


def analyst(endpoint: str) -> None:
    with Client(endpoint, agent="analyst", start=False) as client:
        run(client, LOAD, "orders", "load 100 000 orders into a database that lives in the session")
        run(client, TOP, "orders", "ask it, in a second eval: the database is still there")
        run(client, REPORT, "orders", "a long eval: its lines come while it runs")


def builder(endpoint: str) -> None:
    with Client(endpoint, agent="builder", start=False) as client:
        red = run(client, MODULE, "slugs", "write a module and its tests, run them in the session")
        expect(red.value == "False", "the first tests fail")
        green = run(client, FIX, "slugs", "mend the module, reload it, run the tests again")
        expect(green.value == "True", "the mended tests pass")


def together(endpoint: str) -> None:
    heading("two agents at the same time, each with a session of its own")
    failures: list[BaseException] = []

    def guarded(work: object) -> None:
        try:
            work(endpoint)  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001 - a thread's failure must fail the demonstration
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (analyst, builder)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def accidents(endpoint: str) -> None:
    with Client(endpoint, agent="analyst", start=False) as one, Client(endpoint, agent="builder", start=False) as two:
        heading("an interrupt by another client: the code stops, the state is kept")
        waiting = one.eval("total = 0\nwhile True: total += 1", session="orders", wait=0.3)
        show_result("analyst", waiting)
        expect("running" in waiting.status and waiting.eval_id is not None, "the wait ends before the code")
        show("builder", f"-- interrupt: {two.interrupt('orders').interrupted}")
        show_result("analyst", one.read("orders", waiting.eval_id or 0, wait=10))
        kept = run(one, "total > 1000", "orders", "what it counted is there")
        expect(kept.value == "True", "an interrupt keeps the state")

        heading("a timeout: what was printed is kept, and so is the state")
        late = run(one, "print('working', flush=True)\nwhile True: pass", "orders", "run for ever", timeout=0.5)
        expect("timeout" in late.status and late.state == "kept", "a timeout keeps the state")

        heading("a crash: the other agent does not notice, and this one is told the truth")
        crash = run(one, "import os\nos.abort()", "orders", "os.abort()")
        expect("worker-lost" in crash.status and crash.state == "lost", "a crash loses the state and says so")
        fine = run(two, "slug.slug('Still Here')", "slugs", "meanwhile")
        expect(fine.value == "'still-here'", "another session is untouched")
        run(one, "'db' in globals()", "orders", "the next eval runs in a fresh worker")

        heading("a reset: a fresh process under the same name")
        before = two.info("slugs")["pid"]
        begin = time.perf_counter()
        epoch = two.reset("slugs").epoch
        took = 1000 * (time.perf_counter() - begin)
        show("builder", f"-- reset: epoch {epoch}, {took:.1f} ms, process {before} -> {two.info('slugs')['pid']}")
        expect(run(two, "'slug' in globals()", "slugs", "what is left").value == "False", "a reset forgets")
        limits(endpoint)


def limits(endpoint: str) -> None:
    heading("a limit that refuses: two evals may run, one of this agent may wait, the fourth is turned away")
    clients = [Client(endpoint, agent="builder", start=False) for _ in range(4)]
    try:
        for number, client in enumerate(clients[:3]):
            client.eval("import time\ntime.sleep(1)", session=f"s{number}", wait=0.0)
            show("builder", f"-- eval {number + 1} sent")
        try:
            clients[3].eval("1 + 1", session="s3")
        except ReplError as refusal:
            show("builder", f"   [{refusal.code}: {refusal.message}; again in {refusal.retry_after_ms} ms]")
            expect(refusal.code == "concurrency-limit-reached", "the queue is full")
        else:
            raise SystemExit("demo: the fourth eval was not refused")
        clients[0].read("s2", 1, wait=20)
        after = run(clients[3], "1 + 1", "s3", "and when they are done it is let in")
        expect(after.value == "2", "a refusal heals")
    finally:
        for client in clients:
            client.disconnect()


def serve(directory: str, log: IO[bytes]) -> tuple[subprocess.Popen[bytes], str]:
    """Start a broker of our own with small limits; return its address."""
    endpoint = f"ipc://{directory}/run/broker.sock"
    pairs = [word for limit in LIMITS for word in ("--set", limit)]
    command = [sys.executable, "-m", "replctl", "serve", "--json", "--endpoint", endpoint, *pairs]
    broker = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, env={**os.environ, "REPLCTL_STATE_DIR": directory}
    )
    assert broker.stdout is not None
    if not broker.stdout.readline():
        raise SystemExit(f"demo: the broker did not start; see {log.name}")
    return broker, endpoint


def main() -> None:
    """Run it all; exit 0 when everything held."""
    directory = tempfile.mkdtemp(prefix="replctl-demo-")
    work = tempfile.mkdtemp(prefix="replctl-demo-work-")  # beside it: no session sees its broker's own directory
    with open(f"{directory}/broker.log", "wb") as log:
        broker, endpoint = serve(directory, log)
        os.chdir(work)
        try:
            together(endpoint)
            accidents(endpoint)
            with Client(endpoint, agent="demo", start=False) as client:
                heading("the broker's own count")
                show("broker", str(client.stats()["counts"]))
        finally:
            broker.terminate()
            code = broker.wait(20)
    os.chdir("/")
    for each in (directory, work):
        shutil.rmtree(each)
    expect(code == 0, "the broker ended cleanly")
    print("\nEverything above came back over the wire, and everything it claims was checked.")


if __name__ == "__main__":
    main()
