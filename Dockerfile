# syntax=docker/dockerfile:1

# This stage runs on the building machine's own processor, for either target: bun compiles across, nothing is emulated.
FROM --platform=$BUILDPLATFORM oven/bun:1.4.5 AS build
WORKDIR /src

# A layer of their own: the dependencies are fetched again only when these two files change.
COPY package.json bun.lock ./
RUN bun install --frozen-lockfile --production

COPY proxy.ts ./
# Set by buildx. Declared no earlier, so that both targets share the layers above.
ARG TARGETARCH
# The flags stand in package.json. For the other processor, bun fetches its runtime from the npm registry.
RUN case "$TARGETARCH" in \
      amd64) arch=x64 ;; \
      arm64) arch=arm64 ;; \
      *) echo "TARGETARCH must be amd64 or arm64, not '$TARGETARCH'" >&2; exit 1 ;; \
    esac \
 && bun run "build:$arch" \
 && mv "dist/language-tag-proxy-linux-$arch" /language-tag-proxy

# The smallest base that the binary runs on: it needs glibc and nothing else. "static" has no glibc; "base" brings
# OpenSSL and "cc" the C++ library besides, and Bun holds its own of both. "nonroot" is user 65532.
FROM gcr.io/distroless/base-nossl-debian12:nonroot
COPY --from=build /language-tag-proxy /usr/local/bin/language-tag-proxy
EXPOSE 8080
# The image has no shell and no curl, so the binary asks itself. It gives up after 5 seconds of its own.
HEALTHCHECK --interval=30s --timeout=6s --start-period=5s CMD ["/usr/local/bin/language-tag-proxy", "--health"]
# Exec form: the proxy is process 1, and SIGTERM reaches it.
ENTRYPOINT ["/usr/local/bin/language-tag-proxy"]
