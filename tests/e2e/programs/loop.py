"""asyncio: a server and a client on loopback, a signal handler, a subprocess."""
import asyncio
import os
import signal


async def serve(reader, writer):
    writer.write((await reader.readline()).upper())
    await writer.drain()
    writer.close()


async def main():
    got = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, got.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(got.wait(), 10)
    for host in ("127.0.0.1", "::1"):
        server = await asyncio.start_server(serve, host, 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.write(b"hello\n")
        print((await asyncio.wait_for(reader.readline(), 10)).decode().strip())
        writer.close()
        server.close()
    process = await asyncio.create_subprocess_exec("echo", "child", stdout=asyncio.subprocess.PIPE)
    print((await process.communicate())[0])
    unix = await asyncio.start_unix_server(serve, "/tmp/loop.sock")
    reader, writer = await asyncio.open_unix_connection("/tmp/loop.sock")
    writer.write(b"unix\n")
    print((await asyncio.wait_for(reader.readline(), 10)).decode().strip())
    unix.close()
    os.unlink("/tmp/loop.sock")
    await asyncio.get_running_loop().run_in_executor(None, print, "thread")


asyncio.run(main())
