"""Programs that know nothing of a proxy reach listed hosts, with and without TLS, from every runtime."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attack_targets import begin, end
from kit import BrokerProcess, CollectedReplies, Wire
from network_kit import HELLO, Upstream

BIN = Path(sys.executable).parent
HOSTS = ["pkg.test", "files.pkg.test", "git.test", "npm.test"]

PYTHON = {
    "urllib": "import urllib.request as r; print(r.urlopen('{scheme}://pkg.test/', timeout=10).read().decode())",
    "http.client": "import http.client as h, ssl\n"
    "c = h.HTTP{s}Connection('pkg.test', timeout=10); c.request('GET', '/'); print(c.getresponse().read().decode())",
    "requests": "import requests; print(requests.get('{scheme}://pkg.test/', timeout=10).text)",
    "httpx": "import httpx; print(httpx.get('{scheme}://pkg.test/', timeout=10).text)",
    "asyncio": "import asyncio, ssl\n"
    "async def f():\n"
    "    r, w = await asyncio.open_connection('pkg.test', {port}, ssl={tls})\n"
    "    w.write(b'GET / HTTP/1.0\\r\\n\\r\\n'); print((await r.read()).decode()); w.close()\n"
    "asyncio.run(f())",
}
SHELL = {
    "curl": "curl -sS -m 10 {scheme}://pkg.test/",
    "curl with HTTP/2": "curl -sS -m 10 --http2 {scheme}://pkg.test/",
    "wget": "wget -T 10 -t 1 -q -O - --ca-certificate=$SSL_CERT_FILE {scheme}://pkg.test/",
    "git": "git clone -q {scheme}://git.test/demo.git r-$$ && git -C r-$$ log --format='%s " + HELLO + "'",
    "npm": "npm view --registry {scheme}://npm.test/ demo version && echo " + HELLO,
    "node program": "node -e \"fetch('{scheme}://pkg.test/').then(r => r.text()).then(console.log)\"",
    "/dev/tcp": "exec 3<>/dev/tcp/pkg.test/80 && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3",
}
PYTHON_TOOLS = {  # where a python is to be seen
    "pip": f"{sys.executable} -m pip download -q --no-deps --disable-pip-version-check --trusted-host none.test"
    " {insecure} -d d-$$ -i {scheme}://pkg.test/simple demo && ls d-$$/demo-1.0-py3-none-any.whl && echo " + HELLO,
    "uv": f"{BIN}/uv -q pip install --no-cache {{insecure_uv}} --python {sys.executable} --target t-$$"
    " --default-index {scheme}://pkg.test/simple demo && ls t-$$/demo.py && echo " + HELLO,
    "python program": f'{sys.executable} -c "{PYTHON["urllib"]}"',
}
NODE = {
    "fetch": "await (await fetch('{scheme}://pkg.test/')).text()",
    "http module": "await new Promise((y, n) => require('{scheme}').get('{scheme}://pkg.test/', r => "
    "{{ let t = ''; r.on('data', d => t += d); r.on('end', () => y(t)) }}).on('error', n))",
    "resolver": "'" + HELLO + " ' + (await require('dns').promises.resolve4('pkg.test'))",
}
CASES = [
    *(("python", name) for name in PYTHON),
    *(("python", name) for name in PYTHON_TOOLS),
    *(("bash", name) for name in SHELL),
    *(("node", name) for name in NODE),
]


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture(scope="module", params=["http", "https"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def broker(who: str, scheme: str, upstream: Upstream) -> Iterator[BrokerProcess]:
    with pytest.MonkeyPatch.context() as patch:  # Node reads its variable when it starts
        for pair in upstream.trust:
            patch.setenv(*pair.split("=", 1))
        names = f"session.pass-env={[pair.partition('=')[0] for pair in upstream.trust]}"
        broker = begin(who, names, config=upstream.config(HOSTS, tls=scheme == "https"), warm=1)
    yield broker
    end(broker)


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[Wire]:
    with broker.wire() as wire:
        yield wire


@pytest.mark.parametrize(("runtime", "program"), CASES)
def test_it_reaches_a_listed_host_unmodified(client: Wire, scheme: str, runtime: str, program: str) -> None:
    tls = scheme == "https"
    if tls and program == "/dev/tcp":
        pytest.skip("bash itself speaks no TLS")
    code = {"python": PYTHON | PYTHON_TOOLS, "bash": SHELL, "node": NODE}[runtime][program]
    if program in PYTHON_TOOLS:
        code = f"import subprocess; print(subprocess.getoutput({code!r}))"
    for old, new in {
        "{scheme}": scheme,
        "{s}": "S" if tls else "",
        "{port}": "443" if tls else "80",
        "{tls}": "ssl.create_default_context()" if tls else "None",
        "{insecure}": "" if tls else "--trusted-host pkg.test",
        "{insecure_uv}": "" if tls else "--allow-insecure-host pkg.test",
        "{{": "{",
        "}}": "}",
    }.items():
        code = code.replace(old, new)
    result = run(client, runtime, code)
    text = result.out + (result.value or "")
    assert HELLO in text, (result.out, result.err, result.messages)
    assert result.get("notice") is None


def test_every_program_tried_is_installed() -> None:
    """So that no case above passes for lack of its program."""
    assert all(shutil.which(name) for name in ("curl", "wget", "git", "npm", "node", "bash"))
    assert (BIN / "uv").exists()


def run(client: Wire, runtime: str, code: str) -> CollectedReplies:
    """Run code in a session of this runtime."""
    return client.run(code, session=runtime, runtime=runtime, timeout_ms=60_000)
