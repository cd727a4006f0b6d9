"""Certificates made by openssl, and an endpoint that adds TLS to a server without it."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_NEW_KEY = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1"


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files of a server's certificate for a host, and of the authority that signed it."""

    cert: Path
    key: Path
    authority: Path

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """The server's side, and that of a client which trusts the authority."""
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(self.cert, self.key)
        return server, ssl.create_default_context(cafile=str(self.authority))


def make_certificate(folder: Path, host: str = "localhost") -> Certificate:
    """A new authority, and a certificate that it has signed for this host."""
    folder.mkdir()
    authority, authority_key = folder / "ca.pem", folder / "ca-key.pem"
    cert, key, request = folder / "cert.pem", folder / "key.pem", folder / "request.pem"
    names = folder / "names"
    names.write_text(f"subjectAltName=DNS:{host}\n")
    _run(f"{_NEW_KEY} -x509 -subj /CN=authority -keyout {authority_key} -out {authority}")
    _run(f"{_NEW_KEY} -subj /CN={host} -keyout {key} -out {request}".replace(" -days 1", ""))
    _run(
        f"openssl x509 -req -in {request} -CA {authority} -CAkey {authority_key} -CAcreateserial "
        f"-days 1 -extfile {names} -out {cert}"
    )
    key.chmod(0o600)
    return Certificate(cert, key, authority)


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)


@contextmanager
def tls_endpoint(port: int, certificate: Certificate) -> Iterator[int]:
    """A port of loopback that speaks TLS, and passes everything on to `port`."""
    context, _ = certificate.contexts()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    line, _ = listener.accept()
                    threading.Thread(target=_serve, args=(line, context, port), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _serve(line: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with (
        suppress(OSError),
        context.wrap_socket(line, server_side=True) as outside,
        socket.create_connection(("127.0.0.1", port)) as inside,
    ):
        back = threading.Thread(target=_pass, args=(inside, outside), daemon=True)
        back.start()
        _pass(outside, inside)
        back.join()


def _pass(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
