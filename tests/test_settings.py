import re
import stat
from pathlib import Path

import pytest
from pydantic import SecretStr

from app.addresses import is_loopback
from app.errors import StartUpFailed
from app.main import create_app, run
from app.settings import Settings, load_settings, new_token
from app.store.credentials.sealing import new_key
from app.variable_names import check_names
from tests.alerts.notices import SECRET

TOKEN = "pl_" + "t" * 40
HOOK = "https://receiver.example/hook"


def test_a_child_process_gets_the_same_settings(tmp_path):
    settings = load_settings(
        token=TOKEN, allowed_hosts=("a.test", "b.test"), data_dir=tmp_path, public=True, port=1
    )
    environment = {
        name.removeprefix("PACELINE_").lower(): value
        for name, value in settings.as_environment().items()
    }
    assert load_settings(**environment) == settings


def test_token_is_created_once_and_readable_by_its_owner_only(tmp_path):
    first = Settings(data_dir=tmp_path / "new").with_token()
    second = Settings(data_dir=tmp_path / "new").with_token()
    assert first.token is not None
    assert first.token == second.token
    assert stat.S_IMODE((tmp_path / "new" / "token").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("host", "url"), [("10.0.0.7", "http://10.0.0.7:8642"), ("::1", "http://[::1]:8642")]
)
def test_an_ipv6_address_is_in_brackets_in_links(tmp_path, host, url):
    assert Settings(data_dir=tmp_path, port=8642).url_at(host) == url


def test_a_given_token_is_used_as_it_is(tmp_path):
    settings = Settings(token=SecretStr(TOKEN), data_dir=tmp_path)
    assert settings.with_token() is settings
    assert not (tmp_path / "token").exists()


def test_new_tokens_are_valid_and_differ():
    assert new_token() != new_token()
    assert load_settings(token=new_token()).token is not None


def test_no_secret_is_shown():
    settings = load_settings(token=TOKEN, webhook_secret="whsec_abc")
    assert TOKEN not in repr(settings)
    assert "whsec_abc" not in str(settings)


BAD = {
    "token": "short",
    "port": "0",
    "alert_slowdown": "1",
    "window_steps": "0",
    "max_body_bytes": "99999999",
    "webhook_url": "ftp://a.test",
    "log_format": "xml",
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_setting_is_named_without_its_value(name):
    with pytest.raises(StartUpFailed, match=f"PACELINE_{name.upper()}") as refused:
        load_settings(**{name: BAD[name]})
    assert "short" not in str(refused.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "paceline.test"])
def test_non_loopback_host_needs_public_or_tls(host):
    with pytest.raises(StartUpFailed, match=r"--public or PACELINE_PUBLIC"):
        load_settings(host=host)
    assert load_settings(host=host, public=True).host == host
    assert load_settings(host=host, tls_cert="cert.pem", tls_key="key.pem").host == host


@pytest.mark.parametrize("given", ["tls_cert", "tls_key"])
def test_a_certificate_needs_its_key(given):
    with pytest.raises(StartUpFailed, match="tls_cert and tls_key: give both or neither"):
        load_settings(**{given: "file.pem"})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "[::1]", "localhost"])
def test_loopback_is_this_machine(host):
    assert is_loopback(host)


def test_an_alert_cannot_clear_above_where_it_fires():
    with pytest.raises(StartUpFailed, match="alert_clear_slowdown"):
        load_settings(alert_slowdown=1.1, alert_clear_slowdown=1.2)


def test_store_is_a_file_in_the_data_directory_by_default(tmp_path):
    assert Settings(data_dir=tmp_path).store_url == f"sqlite:///{tmp_path}/paceline.db"
    assert Settings(database_url="postgresql://db/a").store_url == "postgresql://db/a"


def test_an_api_without_a_token_or_a_queue_does_not_start():
    with pytest.raises(StartUpFailed, match="PACELINE_TOKEN"):
        create_app(Settings())
    with pytest.raises(StartUpFailed, match="PACELINE_REDIS_URL"):
        create_app(Settings(token=SecretStr(TOKEN)))


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("PACELINE_WEBHOK_URL", "did you mean PACELINE_WEBHOOK_URL?"),
        ("PACELINE_KEEP_RAW_DAY", "did you mean PACELINE_KEEP_RAW_DAYS?"),
        ("paceline_prot", "did you mean PACELINE_PORT?"),
        ("PACELINE_ZZZZ", "docs/settings.md lists all"),
    ],
)
def test_unknown_variable_is_an_error_with_the_nearest_name(monkeypatch, name, nearest):
    monkeypatch.setenv(name, "a-secret")
    with pytest.raises(StartUpFailed) as refused:
        load_settings()
    assert str(refused.value) == f"{name} is no setting: {nearest}"


def links_of(service):
    """What Kubernetes sets in every pod of the namespace for a Service with a port `http`."""
    name = service.upper().replace("-", "_")
    return {
        f"{name}_SERVICE_HOST": "10.0.0.1",
        f"{name}_SERVICE_PORT": "8642",
        f"{name}_SERVICE_PORT_HTTP": "8642",
        f"{name}_PORT": "tcp://10.0.0.1:8642",
        f"{name}_PORT_8642_TCP": "tcp://10.0.0.1:8642",
        f"{name}_PORT_8642_TCP_PROTO": "tcp",
        f"{name}_PORT_8642_TCP_PORT": "8642",
        f"{name}_PORT_8642_TCP_ADDR": "10.0.0.1",
    }


@pytest.mark.parametrize("service", ["paceline-api", "paceline-2-api", "paceline-redis-url"])
def test_service_links_of_kubernetes_are_no_misspelt_settings(monkeypatch, service):
    for name, value in links_of(service).items():
        monkeypatch.setenv(name, value)
    assert load_settings().port == 8642


def test_service_called_paceline_sets_a_port_that_is_told_as_what_it_is(monkeypatch):
    for name, value in links_of("paceline").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StartUpFailed) as refused:
        load_settings()
    assert str(refused.value) == (
        "PACELINE_PORT is tcp://10.0.0.1:8642, which Kubernetes sets for the Service paceline: put "
        "enableServiceLinks: false into the pod's spec, or rename the Service"
    )
    assert load_settings(port=8700).port == 8700, "the option needs no variable"


def test_port_of_a_service_is_a_misspelt_setting_where_it_is_a_number(monkeypatch):
    monkeypatch.setenv("PACELINE_API_PORT", "9000")
    with pytest.raises(StartUpFailed, match=r"PACELINE_API_PORT is no setting: .* PACELINE_PORT\?"):
        load_settings()


def test_every_variable_in_the_repository_is_a_setting_or_known_as_anothers():
    root = Path(__file__).parents[1]
    folders = ("app", "client", "docs", "examples", "ops", ".ci", "frontend")
    files = [path for folder in folders for path in (root / folder).rglob("*") if path.is_file()]
    files = [path for path in files if path.suffix != ".pyc"]
    files += [root / name for name in ("README.md", "docker-compose.yml", "Dockerfile", "Makefile")]
    named = re.compile(rb"PACELINE_[A-Z0-9]+(?:_[A-Z0-9]+)*(?![A-Z0-9_*])")
    found = {each.decode() for path in files for each in named.findall(path.read_bytes())}
    assert "PACELINE_RUN_KEY" in found
    found -= {"PACELINE_WEBHOK", "PACELINE_WEBHOOK", "PACELINE_CORDON", "PACELINE_SMTP"}  # of more
    check_names(
        dict.fromkeys(found, ""), {f"PACELINE_{name.upper()}" for name in Settings.model_fields}
    )


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"webhook_url": HOOK}, "set PACELINE_WEBHOOK_SECRET"),
        ({"webhook_url": HOOK, "webhook_secret": "whsec_x"}, "PACELINE_WEBHOOK_URL and _SECRET"),
        ({"webhook_url": HOOK, "webhook_secret": SECRET}, "there is no key"),
        ({"smtp_url": "smtp://mail.example"}, "PACELINE_SMTP_FROM"),
        ({"cordon_command": "drain 'host"}, "PACELINE_CORDON_COMMAND"),
        ({"cordon_command": "drain", "cordon_dry_run": False}, "PACELINE_CORDON_PROJECTS"),
        ({"alert_rules": "/nowhere/rules.yaml"}, "/nowhere/rules.yaml"),
    ],
)
def test_api_does_not_start_with_settings_that_stop_its_consumer(tmp_path, given, complaint):
    with pytest.raises(StartUpFailed, match=complaint):
        run(load_settings(token=TOKEN, redis_url="redis://localhost", data_dir=tmp_path, **given))


def test_secret_keys_come_from_the_environment_a_file_or_the_data_directory(tmp_path):
    old, new = new_key(), new_key()
    assert not load_settings(data_dir=tmp_path).secret_keys()
    kept = load_settings(data_dir=tmp_path).with_secret_key().secret_keys()
    assert stat.S_IMODE((tmp_path / "secret.key").stat().st_mode) == 0o600
    assert load_settings(data_dir=tmp_path).with_secret_key().secret_keys().ids == kept.ids
    assert load_settings(data_dir=tmp_path).secret_keys().ids == kept.ids
    given = load_settings(data_dir=tmp_path, secret_key=f"{new},{old}").secret_keys()
    assert len(given.ids) == 2
    (tmp_path / "keys").write_text(f"{new}\n{old}\n")
    of_file = load_settings(data_dir=tmp_path, secret_key_file=tmp_path / "keys").secret_keys()
    assert (of_file.ids, of_file.newest_id) == (given.ids, given.newest_id)


def test_two_sources_of_keys_and_missing_files_are_refused(tmp_path):
    with pytest.raises(StartUpFailed, match="give one of them"):
        load_settings(secret_key=new_key(), secret_key_file=tmp_path / "keys")
    with pytest.raises(StartUpFailed, match="PACELINE_SECRET_KEY_FILE: no file"):
        load_settings(secret_key_file=tmp_path / "keys").secret_keys()
