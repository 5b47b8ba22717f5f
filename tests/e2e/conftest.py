"""Fixtures of several modules: packaged models behind a server and by themselves; S3, served by moto on the loopback
interface."""

from __future__ import annotations

import logging
import uuid

import pytest

from tests.kits.servers.s3_kit import store


@pytest.fixture(scope="session")
def s3_server():
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def bucket(s3_server, monkeypatch, tmp_path_factory):
    """The URL of a new bucket."""
    import s3fs

    for name, value in {
        "AWS_ENDPOINT_URL": s3_server, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1", "VLM_CACHE": str(tmp_path_factory.getbasetemp() / "s3-cache"),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    name = uuid.uuid4().hex
    store().mkdir(name)
    return f"s3://{name}"


@pytest.fixture(scope="module")
def served(request):
    """Serves the models that the module names in MODELS; nothing of them is held when all tests are through."""
    from tests.kits.servers import server_kit  # needs the extra [serve]

    models = request.module.MODELS
    with server_kit.serving(server_kit.load(*models)) as found:
        yield found
        assert all(server_kit.is_empty(found.service(name).pipeline) for name in models)


@pytest.fixture(scope="module")
def client(served):
    """OpenAI's own client of that server."""
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture(scope="module")
def llava():
    """The model by itself, an input at a time."""
    from tests.kits.servers import server_kit

    return server_kit.alone("mini-llava")


@pytest.fixture(scope="module")
def t5():
    """The model by itself, a text at a time."""
    from tests.kits.servers import server_kit

    return server_kit.alone("mini-t5")
