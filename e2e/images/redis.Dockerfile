# The distribution's redis-server; the server's settings are arguments of the pod that runs it.
FROM scratch
ADD rootfs.tar /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WORKDIR /data
EXPOSE 6379
CMD ["redis-server", "--bind", "*", "--protected-mode", "no"]
