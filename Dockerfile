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
# For every processor of this architecture. Not in /build, whose app/ is not what is installed.
RUN cd /opt/paceline && NUMBA_CPU_NAME=generic NUMBA_CACHE_DIR=/opt/paceline/kernels \
    bin/python -m app.diagnosis.warm_up

FROM python:3.12-slim-bookworm
RUN useradd --system --uid 10001 --home-dir /var/lib/paceline --create-home paceline
COPY --from=build /opt/paceline /opt/paceline
# The root file system may be read-only: the token lives in /var/lib/paceline. Compiled kernels are
# part of the image, where they need no writing; a volume would hide them at its first start.
ENV PATH=/opt/paceline/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NUMBA_CPU_NAME=generic \
    NUMBA_CACHE_DIR=/opt/paceline/kernels \
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
