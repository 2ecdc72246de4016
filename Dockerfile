# Builds with BuildKit for either processor, and with Docker's old builder for the processor of the machine.

# This stage runs on the machine's own processor for either target. Bun compiles for the other one without emulation,
# and crashes under it. The old builder doesn't set BUILDPLATFORM, and takes "linux" for the machine's own processor.
# A release already has its two binaries: it puts a folder with them in the place of this stage.
FROM --platform=${BUILDPLATFORM:-linux} oven/bun:1.4.5 AS build
WORKDIR /src

# A layer of their own: the dependencies are fetched again only when these two files change.
COPY package.json bun.lock ./
RUN bun install --frozen-lockfile --production

COPY proxy.ts ./
# BuildKit sets it, and the old builder leaves it empty. It is declared no earlier, so that both targets share the
# layers above.
ARG TARGETARCH
# The flags are in package.json. Bun fetches the target's runtime from the npm registry.
RUN case "${TARGETARCH:-$(uname -m)}" in \
      amd64|x86_64) arch=x64 ;; \
      arm64|aarch64) arch=arm64 ;; \
      *) echo "There is no binary for ${TARGETARCH:-$(uname -m)}, only for amd64 and arm64." >&2; exit 1 ;; \
    esac \
 && bun run "build:$arch" \
 && mkdir -p "/$TARGETARCH" \
 && mv "dist/language-tag-proxy-linux-$arch" "/$TARGETARCH/language-tag-proxy"

# The smallest base that the binary runs on: it needs glibc and nothing else. "static" has no glibc; "base" brings
# OpenSSL and "cc" the C++ library besides, and Bun holds its own of both. "nonroot" is user 65532.
FROM gcr.io/distroless/base-nossl-debian13:nonroot
ARG TARGETARCH
COPY --from=build /$TARGETARCH/language-tag-proxy /usr/local/bin/language-tag-proxy
# Bun sends 256 requests at a time, and the others wait. As many uploads that never end would block every search until
# BACKEND_TIMEOUT. Bun reads this limit only from the environment, when it starts.
ENV BUN_CONFIG_MAX_HTTP_REQUESTS=4096
# Bun keeps the address of a name for 30 seconds. For as long, Prowlarr couldn't be reached after its container came
# back with another one.
ENV BUN_CONFIG_DNS_TIME_TO_LIVE_SECONDS=2
# By this name (systemd's and podman's convention), the proxy knows that its commands are typed behind "docker exec".
ENV container=docker
EXPOSE 8080
# The image has no shell and no curl, so the binary asks itself. It gives up after 5 seconds of its own.
HEALTHCHECK --interval=30s --timeout=6s --start-period=5s CMD ["/usr/local/bin/language-tag-proxy", "--health"]
# Exec form: the proxy is process 1, and SIGTERM reaches it.
ENTRYPOINT ["/usr/local/bin/language-tag-proxy"]
