# What keeps a pod's namespaces open where no registry is asked for one.
FROM scratch
COPY pause /pause
USER 65535:65535
ENTRYPOINT ["/pause"]
