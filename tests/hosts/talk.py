"""A program that two hosts talk by."""

TALK = """
import socket, sys, time

if sys.argv[1] == "listen":
    with socket.create_server(("0.0.0.0", 7000)) as listener:
        print("listening", flush=True)
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(2**20):
                if len(data) == 1:
                    connection.sendall(b".")
else:
    with socket.create_connection((sys.argv[1], 7000)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips_s = []
        for _ in range(20):
            begun_s = time.perf_counter()
            connection.sendall(b"?")
            connection.recv(1)
            trips_s.append(time.perf_counter() - begun_s)
        count, begun_s = int(sys.argv[2]), time.perf_counter()
        if count:
            connection.sendall(bytes(count))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1):
                pass
        print(min(trips_s), count / (time.perf_counter() - begun_s))
"""
