# A Caddy with its standard modules and rate_limit in it, alone in an image: no shell, no C library.
#
#     docker build -t tide .
#
# docs/containers.md says how to run it.

FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS
ARG TARGETARCH
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -tags nobadger,nomysql,nopgx -ldflags "-s -w" -o /caddy ./cmd/caddy

FROM scratch
# For a Redis or an upstream with TLS.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /caddy /usr/bin/caddy
# A read-only root has a volume or a tmpfs at /data, for certificates and locks.
ENV PATH=/usr/bin XDG_CONFIG_HOME=/data/config XDG_DATA_HOME=/data
# nobody, by number, as there is no /etc/passwd
USER 65534:65534
EXPOSE 8080 9180
ENTRYPOINT ["/usr/bin/caddy"]
CMD ["run", "--config", "/etc/caddy/Caddyfile"]
