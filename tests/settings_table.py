"""The settings as docs/settings.md lists them."""

from app.settings import Settings
from app.variable_names import PREFIX


def settings_rows() -> list[tuple[str, str, str]]:
    """Variable, default (empty if unset) and description of every setting, in the code's order."""
    return [
        (f"{PREFIX}{name.upper()}", default_text(name), field.description or "")
        for name, field in Settings.model_fields.items()
    ]


def default_text(name: str) -> str:
    """The default as an environment variable."""
    if name == "data_dir":
        return "~/.local/share/paceline"  # the real default has this user's home directory
    value = Settings.model_construct().as_environment().get(f"{PREFIX}{name.upper()}")
    return value or ""
