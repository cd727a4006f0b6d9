# One image for API and consumer; the command chooses. Build: docker build -t paceline .
FROM python:3.12-slim-bookworm AS build
WORKDIR /build
COPY requirements.lock pyproject.toml README.md ./
COPY client client
COPY app app
COPY docs docs
COPY frontend frontend
COPY migrations migrations
RUN python -m venv /opt/paceline \
    && /opt/paceline/bin/pip install --no-cache-dir -c requirements.lock ./client .

FROM python:3.12-slim-bookworm
RUN useradd --system --uid 10001 --home-dir /var/lib/paceline --create-home paceline
COPY --from=build /opt/paceline /opt/paceline
# The root file system may be read-only: compiled kernels and the token live in /var/lib/paceline.
ENV PATH=/opt/paceline/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/var/lib/paceline/numba \
    PACELINE_DATA_DIR=/var/lib/paceline \
    PACELINE_HOST=0.0.0.0 \
    PACELINE_PUBLIC=true \
    PACELINE_LOG_FORMAT=json
USER 10001
VOLUME /var/lib/paceline
EXPOSE 8642
STOPSIGNAL SIGTERM
ENTRYPOINT ["paceline"]
CMD ["api"]
