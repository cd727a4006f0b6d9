"""Every environment variable that Paceline reads; only cli, main and consumer read them."""

import os
import secrets
import shlex
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.addresses import is_loopback, listens_on_all, own_name
from app.alerts.rule import Rule
from app.data_directory import kept_text
from app.errors import InvalidRequest, StartUpFailed
from app.store.disk.usage import DiskMarks, DiskWatch, sqlite_directory
from app.variable_names import PREFIX, check_names, service_link_complaint

if TYPE_CHECKING:
    from app.alerts.cordon import CordonHook
    from app.alerts.receiver import Receiver
    from app.alerts.sending import Transport
    from app.alerts.smtp import MailServer
    from app.store.credentials.sealing import SecretKeys
    from app.store.objects.bucket import Bucket
    from app.store.retention import RetentionLimits


def _default_data_dir() -> Path:
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / "paceline"


def _split(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


ItemT = TypeVar("ItemT")
# Separated by commas.
Listed = Annotated[tuple[ItemT, ...], NoDecode, BeforeValidator(_split)]


class Settings(BaseSettings):
    """Read once at start-up from `PACELINE_*` variables; names carry their unit."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="ignore"
    )

    database_url: str | None = Field(
        None, description="SQLAlchemy URL of PostgreSQL or SQLite; unset: SQLite in the data_dir."
    )
    redis_url: str | None = Field(
        None, description="URL of Redis or Valkey; unset: a server is started as a child."
    )
    data_dir: Path = Field(
        default_factory=_default_data_dir,
        description="Directory of the token, the embedded store and the embedded queue.",
    )
    host: str = Field("127.0.0.1", min_length=1, description="Address that the API listens on.")
    port: int = Field(8642, ge=1, le=65535, description="Port that the API listens on.")
    token: SecretStr | None = Field(
        None,
        description="Bearer token, pl_ and 16 characters or more; unset: generated and stored.",
    )
    secret_key: SecretStr | None = Field(
        None,
        description="Keys that encrypt receivers' secrets in the database, separated by commas, "
        "the newest first; from paceline secrets new-key.",
    )
    secret_key_file: Path | None = Field(
        None,
        description="File with these keys, a line each; unset: secret.key in the data_dir, which "
        "serve makes.",
    )
    public: bool = Field(
        False, description="Whether the API may listen on other than loopback addresses."
    )
    tls_cert: Path | None = Field(
        None, description="Certificate chain (PEM) that the API answers with over TLS."
    )
    tls_key: Path | None = Field(None, description="Private key (PEM) of tls_cert.")
    allowed_hosts: Listed[str] = Field(
        (), description="Further Host names to answer for, separated by commas; * for all."
    )
    public_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s]+$",
        description="Address of the pages, for links in messages; unset: host and port, with the "
        "name of this machine where host is 0.0.0.0 or ::.",
    )
    share_links: Literal["off", "signed-in", "anyone"] = Field(
        "signed-in",
        description="Who can open a share link: nobody (off), who is signed in to its project, or "
        "anyone who has it.",
    )
    perfetto_url: str = Field(
        "https://ui.perfetto.dev",
        pattern=r"^https?://[^\s]+$",
        description="Address of the Perfetto UI that the timeline page opens.",
    )
    demo_switch: Path | None = Field(
        None,
        description="Set by serve: while this file exists, serve runs the demo's jobs.",
    )
    window_steps: int = Field(8, ge=1, le=1000, description="Training steps analysed together.")
    step_deadline_s: float = Field(
        30.0, gt=0, description="Seconds to wait for a step's last worker after its first."
    )
    revise_for_s: float = Field(
        600.0,
        ge=0,
        description="Grace period in which late operations update a closed window; at least 600 s "
        "for ended jobs.",
    )
    alert_slowdown: float = Field(
        1.1, gt=1, description="Slowdown S at or above which a window counts towards an alert."
    )
    alert_clear_slowdown: float = Field(
        1.05, gt=1, description="Slowdown S below which a firing alert is resolved."
    )
    alert_windows: int = Field(
        3,
        ge=1,
        description="Closed windows in a row at or above alert_slowdown before an alert fires.",
    )
    alert_for_s: float = Field(
        30.0, ge=0, description="Seconds that the steps of these windows must cover, too."
    )
    alert_keep_firing_s: float = Field(
        60.0, ge=0, description="Seconds of steps below the threshold that resolve a firing alert."
    )
    alert_rules: Path | None = Field(
        None, description="YAML file with the alert rules of projects without rules of their own."
    )
    alert_group_wait_s: float = Field(
        1.0,
        ge=0,
        le=600,
        description="Seconds to wait for more alerts before the first notification.",
    )
    alert_group_interval_s: float = Field(
        60.0, ge=1, le=86_400, description="Seconds between notifications of one rule on one job."
    )
    alert_damping_s: float = Field(
        300.0, ge=0, description="Seconds in which a flapping alert is notified at most once."
    )
    alert_repeat_h: float = Field(
        4.0, gt=0, le=720, description="Hours after which a firing alert is notified again."
    )
    cordon_command: str | None = Field(
        None,
        description="Command that rules with a cordon call, without a shell; JSON on its input.",
    )
    cordon_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s]+$",
        description="URL that rules with a cordon POST to instead of calling a command.",
    )
    cordon_dry_run: bool = Field(
        True, description="Whether cordons are only logged and audited, and nothing is called."
    )
    cordon_projects: Listed[str] = Field(
        (), description="Projects whose rules may ask for cordons, separated by commas; * for all."
    )
    cordon_actions: Listed[str] = Field(
        (), description="Cordons that rules may ask for (drain-host, ...); * for all."
    )
    webhook_url: str | None = Field(
        None, pattern=r"^https?://[^\s]+$", description="Where alerts are sent; unset: nowhere."
    )
    webhook_secret: SecretStr | None = Field(
        None, description="Standard Webhooks secret (whsec_...) that signs alerts."
    )
    webhook_allow: Listed[IPv4Network | IPv6Network] = Field(
        (),
        description="Private networks (10.2.0.0/16, ...) that projects' own receivers may be in.",
    )
    webhook_allow_http: bool = Field(
        False, description="Whether projects' own receivers may be http:// ones, without TLS."
    )
    webhook_ports: Listed[int] = Field(
        (80, 443, 8443), description="Ports that projects' own receivers may be on."
    )
    smtp_url: SecretStr | None = Field(
        None, description="Mail server of e-mail receivers: smtp[s]://USER:PASSWORD@HOST:PORT."
    )
    smtp_from: str | None = Field(None, description="Address that e-mail is from.")
    smtp_domains: Listed[str] = Field(
        (), description="Domains that e-mail receivers may be in; unset: that of SMTP_FROM."
    )
    shards: int = Field(
        4, ge=1, le=1024, description="Parts of the event queue; equal for API and consumers."
    )
    lease_s: float = Field(
        15.0, ge=1, description="Seconds after which a silent consumer loses its shards."
    )
    max_body_bytes: int = Field(8 << 20, ge=1024, le=8 << 20, description="Largest request body.")
    max_batch_rows: int = Field(
        100_000, ge=1, le=100_000, description="Largest number of operations in a batch."
    )
    # High enough for a job of 16,384 workers that push twice a second; operators of shared services
    # may set it lower.
    limit_requests_per_s: float = Field(
        20_000.0,
        gt=0,
        description="Pushes a second of one project in each API process; all others apart.",
    )
    limit_bytes_per_s: float = Field(
        200e6,
        gt=0,
        description="Bytes a second that one project pushes to each API process; all others apart.",
    )
    limit_jobs: int = Field(
        1000, ge=1, description="Jobs of one project that are active or began a run within a day."
    )
    silent_after_s: float = Field(
        300.0, gt=0, description="Seconds without data after which a job is called silent."
    )
    start_within_s: float = Field(
        1800.0,
        gt=0,
        description="Seconds that a run has for its first complete step until it is silent.",
    )
    consumers_dead_after_s: float = Field(
        300.0,
        ge=0,
        description="Seconds without a working consumer after which the API tells all receivers; "
        "0: never.",
    )
    canary_every_s: float = Field(
        0.0,
        ge=0,
        description="Seconds between rounds of the canary job, 10 or more; 0: none, but in "
        "`paceline serve`, where unset means 120.",
    )
    canary_missing_after_s: float = Field(
        600.0,
        gt=0,
        description="Seconds without a found canary after which the API tells all receivers.",
    )
    keep_raw_days: float = Field(
        14.0, ge=1, description="Days for which the operations of closed windows are kept."
    )
    keep_results_days: float = Field(
        180.0, ge=1, description="Days for which windows, ended runs and alerts are kept."
    )
    keep_gb: float | None = Field(
        None,
        gt=0,
        description="GB of the database that the windows of a project may take: beyond, its oldest "
        "operations go, then its oldest windows; unset: no quota.",
    )
    disk_warn_percent: float = Field(
        80.0, gt=0, le=100, description="Used part of the disk from which on operators are warned."
    )
    disk_raw_percent: float = Field(
        90.0,
        gt=0,
        le=100,
        description="From here on the operations of closed windows are not stored.",
    )
    disk_stop_percent: float = Field(
        95.0, gt=0, le=100, description="From here on batches are refused, with 503."
    )
    disk_ample_gb: float = Field(
        10.0,
        ge=0,
        description="Free space with which operations and batches are stored at any percentage.",
    )
    database_disk_gb: float | None = Field(
        None,
        gt=0,
        description="Size of the disk of PostgreSQL, which does not tell it; unset: not watched.",
    )
    thin_steps_days: float = Field(
        2.0, ge=0.25, description="Days for which figures by step are kept, then means a window."
    )
    thin_windows_days: float = Field(
        3.0,
        ge=0.25,
        description="Days for which each window is kept, then one an hour with the figures of all "
        "and the operations of one.",
    )
    thin_hours_days: float = Field(
        30.0, ge=1, description="Days for which hours are kept, then one window a day."
    )
    s3_bucket: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,254}$",
        description="Bucket of an S3-compatible object storage that operations of closed windows "
        "move to; unset: they stay in the database.",
    )
    s3_endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s@]+$",
        description="Address of the object storage; unset: Amazon's of s3_region.",
    )
    s3_region: str = Field("us-east-1", min_length=1, description="Region of the bucket.")
    s3_prefix: str = Field(
        "paceline",
        pattern=r"^[A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)*$",
        description="What the names of all objects begin with; give each Paceline its own.",
    )
    s3_access_key: str | None = Field(
        None,
        description="Access key of the object storage; unset: AWS_ACCESS_KEY_ID, or the role of "
        "the machine.",
    )
    s3_secret_key: SecretStr | None = Field(None, description="Secret of s3_access_key.")
    s3_secret_key_file: Path | None = Field(
        None, description="File with the secret of s3_access_key, in place of s3_secret_key."
    )
    s3_after_h: float = Field(
        1.0,
        ge=0,
        description="Hours after which operations move; at least twice revise_for_s.",
    )
    redis_maxmemory_mb: int = Field(
        512, ge=16, description="Memory limit of the embedded event queue in MiB."
    )
    allow_lossy: bool = Field(
        False, description="Whether to start with a queue or store that may lose data in a crash."
    )
    wait_replicas: int = Field(
        0,
        ge=0,
        description="Replicas of the event queue that must have a batch before it is acknowledged.",
    )
    session_hours: float = Field(
        12.0, gt=0, le=720, description="Hours until a signed-in page has to sign in again."
    )
    gpu_hour_price: float | None = Field(
        None, gt=0, le=1e6, description="Price of a GPU hour; unset: no amounts of money are shown."
    )
    currency: str = Field(
        "$",
        min_length=1,
        max_length=8,
        pattern=r"^[^\x00-\x1f\x7f]*$",
        description="Currency sign before amounts of money on the pages.",
    )
    metrics_top_jobs: int = Field(
        100, ge=1, le=1000, description="Jobs that /metrics names, those that lose most."
    )
    log_format: Literal["text", "json"] = Field("text", description="How log lines are written.")

    @field_validator("token")
    @classmethod
    def _strong(cls, token: SecretStr | None) -> SecretStr | None:
        text = token.get_secret_value() if token else None
        if text is not None and not (text.startswith("pl_") and len(text) >= 19 and text.isascii()):
            raise ValueError("a token is pl_ and 16 or more ASCII characters")
        return token

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key: give both or neither")
        if self.tls_cert is None and not self.public and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host} is not loopback: give a certificate (--tls-cert and --tls-key), "
                f"or, behind something that adds TLS, --public or {PREFIX}PUBLIC=true"
            )
        if self.secret_key is not None and self.secret_key_file is not None:
            raise ValueError("secret_key and secret_key_file: give one of them")
        self._check_notifying()
        if not self.disk_warn_percent <= self.disk_raw_percent <= self.disk_stop_percent:
            raise ValueError(
                "disk_warn_percent, disk_raw_percent and disk_stop_percent must not decrease"
            )
        if 0 < self.canary_every_s < 10:
            raise ValueError("canary_every_s: want 10 s or more between rounds, or 0 for none")
        if self.canary_missing_after_s < 2 * self.canary_every_s:
            raise ValueError("canary_missing_after_s: want two rounds (canary_every_s) or more")
        if self.alert_clear_slowdown > self.alert_slowdown:
            raise ValueError("alert_clear_slowdown must not be above alert_slowdown")
        if not self.thin_steps_days <= self.thin_windows_days <= self.thin_hours_days:
            raise ValueError(
                "thin_steps_days, thin_windows_days, thin_hours_days: none may be above the next"
            )
        if self.s3_secret_key is not None and self.s3_secret_key_file is not None:
            raise ValueError("s3_secret_key and s3_secret_key_file: give one of them")
        has_secret = self.s3_secret_key is not None or self.s3_secret_key_file is not None
        if has_secret != (self.s3_access_key is not None):
            raise ValueError("s3_access_key and s3_secret_key (or _file): give both or neither")
        return self

    def _check_notifying(self) -> None:
        """Raise ValueError for combinations that a consumer could not notify with."""
        if self.webhook_url is not None and self.webhook_secret is None:
            raise ValueError(f"alerts are signed: set {PREFIX}WEBHOOK_SECRET to a whsec_... too")
        if self.cordon_command is not None and self.cordon_url is not None:
            raise ValueError(f"set {PREFIX}CORDON_COMMAND or {PREFIX}CORDON_URL, not both")
        is_asked = self.cordon_command is not None or self.cordon_url is not None
        is_allowed = self.cordon_projects and self.cordon_actions
        if is_asked and not self.cordon_dry_run and not is_allowed:
            raise ValueError(
                "cordons are enabled, but not allowed for any project or action: "
                f"set {PREFIX}CORDON_PROJECTS and {PREFIX}CORDON_ACTIONS"
            )

    def check_usable(self) -> None:
        """Check what every process of a service needs, whichever of them this one is.

        An API would answer 202 for ever to batches that a consumer with the same settings never
        analyses, as it cannot start.

        Raises:
            StartUpFailed: a setting cannot be used; the message names it.
        """
        self.default_rules()
        self.settings_receiver()
        self.cordon_hook()
        if self.webhook_url is not None and not self.secret_keys():
            raise StartUpFailed(
                f"{PREFIX}WEBHOOK_URL is stored encrypted, and there is no key: set "
                f"{PREFIX}SECRET_KEY to one of paceline secrets new-key, the same for API and "
                "consumers"
            )

    def transport(self) -> "Transport":
        """How messages are sent; raises StartUpFailed if the mail server cannot be used."""
        # Imports an HTTP library, which most commands do not need.
        from app.alerts.guard import SsrfGuard
        from app.alerts.sending import Transport

        ports = frozenset(self.webhook_ports)
        guard = SsrfGuard(self.webhook_allow, self.webhook_allow_http, ports)
        return Transport(guard, self.mail_server())

    def settings_receiver(self) -> "Receiver | None":
        """The receiver that all projects share, None if not set; raises StartUpFailed."""
        from app.alerts.receiver import SETTINGS_RECEIVER_ID, Receiver
        from app.alerts.sending import refuse_unusable_receiver

        guard_for = self.transport().guard_for
        if self.webhook_url is None or self.webhook_secret is None:
            return None
        name = SETTINGS_RECEIVER_ID
        secrets = (self.webhook_secret.get_secret_value(),)
        receiver = Receiver(name, None, name, "standard", self.webhook_url, secrets)
        try:
            refuse_unusable_receiver(receiver, guard_for(receiver))
        except InvalidRequest as error:
            raise StartUpFailed(f"{PREFIX}WEBHOOK_URL and _SECRET: {error}") from error
        return receiver

    def cordon_hook(self) -> "CordonHook | None":
        """The hook that rules with a cordon call, None if not set; raises StartUpFailed."""
        from app.alerts.cordon import CordonHook

        if self.cordon_command is None and self.cordon_url is None:
            return None
        words = _command_words(self.cordon_command)
        allowed = (self.cordon_projects, self.cordon_actions)
        return CordonHook(words, self.cordon_url, self.cordon_dry_run, *allowed)

    @property
    def pages_url(self) -> str:
        """Address of the pages, for links in messages: `public_url`, else where the API listens."""
        return self.public_url or self.url_at(
            own_name() if listens_on_all(self.host) else self.host
        )

    def url_at(self, host: str) -> str:
        """Address of the pages at this host or address, with scheme and port."""
        shown = f"[{host}]" if ":" in host else host
        scheme = "http" if self.tls_cert is None else "https"
        return f"{scheme}://{shown}:{self.port}"

    @property
    def store_url(self) -> str:
        """URL of the database in use."""
        return self.database_url or f"sqlite:///{self.data_dir / 'paceline.db'}"

    @property
    def retention(self) -> "RetentionLimits":
        """How long, and how much, is kept of projects that have no limits of their own."""
        from app.store.retention import RetentionLimits  # the store's tables take a second

        return RetentionLimits(self.keep_raw_days, self.keep_results_days, self.keep_gb)

    def disk_watch(self) -> DiskWatch:
        """A watch of the disks that data is written to.

        These are the directories of SQLite and of an embedded queue, and PostgreSQL's disk if its
        size is set.
        """
        directory = sqlite_directory(self.store_url)
        directories = [directory] if directory else []
        is_embedded = (self.redis_url or "unix:").startswith("unix:")
        if is_embedded and self.data_dir not in directories:
            directories.append(self.data_dir)
        marks = DiskMarks(
            warn=self.disk_warn_percent / 100,
            raw=self.disk_raw_percent / 100,
            stop=self.disk_stop_percent / 100,
            ample_bytes=int(self.disk_ample_gb * 1e9),
        )
        watch = DiskWatch(directories, marks)
        if self.database_disk_gb is not None:
            watch.database_disk_bytes = int(self.database_disk_gb * 1e9)
        return watch

    def default_rules(self) -> list[Rule]:
        """The alert rules of projects without rules of their own.

        Raises:
            StartUpFailed: their file cannot be read, or a rule is invalid.
        """
        # Imports numba, which most commands do not need.
        from app.alerts.rule import default_rules
        from app.alerts.rules.rule_text import rules_of_file

        if self.alert_rules is not None:
            return rules_of_file(self.alert_rules)
        return default_rules(
            slowdown=self.alert_slowdown,
            clear_slowdown=self.alert_clear_slowdown,
            windows=self.alert_windows,
            for_s=self.alert_for_s,
            keep_firing_s=self.alert_keep_firing_s,
        )

    def mail_server(self) -> "MailServer | None":
        """The operator's mail server, None if not set; raises StartUpFailed if unusable."""
        # Imports an HTTP library, which most commands do not need.
        from app.alerts.smtp import parse_mail_server

        if self.smtp_url is None:
            return None
        url = self.smtp_url.get_secret_value()
        return parse_mail_server(url, self.smtp_from, self.smtp_domains)

    def secret_keys(self) -> "SecretKeys":
        """The keys of stored secrets; none where there is neither a key nor a file of keys.

        Raises:
            StartUpFailed: one is no key, or the file cannot be read.
        """
        # Imports a library of ciphers and SQLAlchemy, which most commands do not need.
        from app.store.credentials.sealing import SecretKeys, parse_keys

        if self.secret_key is not None:
            return parse_keys(self.secret_key.get_secret_value(), _variable("secret_key"))
        path = self.secret_key_file or self.kept_key_file
        try:
            return parse_keys(path.read_text(), str(path))
        except FileNotFoundError:
            if self.secret_key_file is None:
                return SecretKeys()
            raise StartUpFailed(f"{_variable('secret_key_file')}: no file {path}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise StartUpFailed(f"{path} cannot be read: {error}") from error

    @property
    def kept_key_file(self) -> Path:
        """File of the generated secret key: beside the database, and in no backup."""
        return self.data_dir / "secret.key"

    def bucket(self) -> "Bucket | None":
        """The bucket of operations; None if not set.

        Raises:
            StartUpFailed: a setting of it cannot be used.
            NotInstalled: the package for it is missing.
        """
        from app.store.objects.bucket import BucketAddress, S3Bucket

        if self.s3_bucket is None:
            return None
        return S3Bucket(
            BucketAddress(
                bucket=self.s3_bucket,
                prefix=self.s3_prefix,
                endpoint=self.s3_endpoint,
                region=self.s3_region,
                access_key=self.s3_access_key,
                secret_key=self._s3_secret(),
            )
        )

    def _s3_secret(self) -> str | None:
        if self.s3_secret_key is not None:
            return self.s3_secret_key.get_secret_value()
        if self.s3_secret_key_file is None:
            return None
        try:
            return self.s3_secret_key_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise StartUpFailed(f"{PREFIX}S3_SECRET_KEY_FILE cannot be read: {error}") from error

    @property
    def token_file(self) -> Path:
        """File of the generated token."""
        return self.data_dir / "token"

    def as_environment(self) -> dict[str, str]:
        """The variables that give a child process these settings."""
        values = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {_variable(name): _as_text(value) for name, value in values if value is not None}

    def with_token(self) -> "Settings":
        """These settings with a token: the given one, else the one in the data directory."""
        if self.token is not None:
            return self
        token = kept_text(self.token_file, new_token)
        return self.model_copy(update={"token": SecretStr(token)})

    def with_secret_key(self) -> "Settings":
        """These settings with a secret key: the given ones, else one kept in the data directory."""
        if self.secret_key is not None or self.secret_key_file is not None:
            return self
        from app.store.credentials.sealing import new_key

        kept_text(self.kept_key_file, new_key)
        return self.model_copy(update={"secret_key_file": self.kept_key_file})


def load_settings(**given: Any) -> Settings:
    """Settings of the environment; arguments that are not None override it.

    Raises:
        StartUpFailed: a variable cannot be used, or there is no such one; the message names it.
    """
    check_names(os.environ, {_variable(name) for name in Settings.model_fields})
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise StartUpFailed("; ".join(_complaint(item) for item in error.errors())) from error


def new_token() -> str:
    """A token that cannot be guessed."""
    return f"pl_{secrets.token_urlsafe(32)}"


def _command_words(command: str | None) -> Sequence[str]:
    if command is None:
        return ()
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise StartUpFailed(f"{PREFIX}CORDON_COMMAND: {error}") from None
    if not words:
        raise StartUpFailed(f"{PREFIX}CORDON_COMMAND names no command")
    return words


def _variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def _as_text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _complaint(item: ErrorDetails) -> str:
    # The input stays out of the message: it may be a secret.
    where = _variable(str(item["loc"][0])) if item["loc"] else "settings"
    link = service_link_complaint(where, item["input"])
    return link or f"{where}: {item['msg'].removeprefix('Value error, ')}"
