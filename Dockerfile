# docker build -t ipcbench .
# docker run --rm --shm-size=512m -v "$PWD/results:/results" ipcbench run --out /results/RUN
#
# --shm-size: Docker gives a container 64 MB of shared memory. Seven readers over MPI, or messages of 16 MiB, need more.
FROM python:3.11-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip install --no-cache-dir "/src[mpi,report]" && rm -rf /src
ENTRYPOINT ["ipcbench"]
CMD ["run"]
