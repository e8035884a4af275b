// The second thread: reads the control channel, so that an interrupt is heard while user code keeps the first one busy.
//
// Why a thread. A signal alone will not do: node hands it to JavaScript from its event loop, which a busy loop never
// reaches, and vm's breakOnSigint covers only the part of an eval before its first await and leaves moments in which
// SIGINT has no handler and kills the process. The inspector does it: a session of another thread can call a function
// in the first thread in the midst of its JavaScript, as a signal handler would be called. That function is `strike`
// in runner.mjs; it knows exactly what runs, so no interrupt is early, late, or meant for another eval.

import { readFileSync } from 'node:fs';
import { Session } from 'node:inspector';
import { Socket } from 'node:net';
import { parentPort, workerData } from 'node:worker_threads';

const FRAME_BYTES = 8 << 20;
const [NO, LATER, SOON] = [0, 1, 2]; // what the strike says of the next one
const AGAIN_MS = 100; // how soon to strike once more at an eval that has not ended
const SOON_MS = 1;
const LAST_MS = 1000; // what a busy first thread has left when the worker is gone

const CALL = 'function (number) { return this(number); }';

const session = new Session();
session.connectToMainThread();
parentPort.on('message', () => {}); // keeps this thread alive while the session, which does not, has our question
let striker;
let wanted = 0; // the eval to end
let children = new Set(); // of the process when the running eval began
let parts = [];
let have = 0;
let need = 4;

session.post('Runtime.evaluate', { expression: `globalThis[${JSON.stringify(workerData.key)}]` }, (error, answer) => {
  if (error) throw error;
  striker = answer.result.objectId;
  parentPort.postMessage({ op: 'up' });
  const socket = new Socket({ fd: workerData.fd, readable: true, writable: false });
  socket.on('data', receive);
  socket.on('error', () => end('gone'));
  socket.on('end', () => end('gone'));
});

function receive(chunk) {
  parts.push(chunk);
  have += chunk.length;
  while (have >= need) {
    const data = parts.length === 1 ? parts[0] : Buffer.concat(parts);
    const size = data.readUInt32BE(0);
    if (size > FRAME_BYTES) return end('breach');
    need = 4 + size;
    parts = [data];
    if (have < need) return;
    const message = parsed(data.toString('utf8', 4, need));
    if (message === null) return end('breach');
    hear(message);
    parts = [data.subarray(need)];
    have -= need;
    need = 4;
  }
}

function parsed(text) {
  try {
    const message = JSON.parse(text);
    return typeof message?.op === 'string' && Number.isInteger(message.n) ? message : null;
  } catch {
    return null;
  }
}

function hear(message) {
  if (message.op === 'interrupt') {
    wanted = message.n;
    strike(message.n);
    return;
  }
  if (message.op === 'eval') children = new Set(childrenOf(process.pid));
  parentPort.postMessage(message);
}

/** Ask for the end of an eval, again and again until the first thread says that it is over. */
function strike(number) {
  const blocked = setTimeout(kick, AGAIN_MS);
  const call = { objectId: striker, functionDeclaration: CALL, arguments: [{ value: number }], returnByValue: true };
  session.post('Runtime.callFunctionOn', call, (error, answer) => {
    clearTimeout(blocked);
    // An error: the strike stopped the very call that asked for it. Whether it met what it was to meet, we ask again.
    const again = error ? LATER : answer.result.value;
    if (again !== NO) setTimeout(() => wanted === number && strike(number), again === SOON ? SOON_MS : AGAIN_MS);
  });
}

/** The first thread does not answer at all: it waits in execSync() or its kin. As Ctrl-C in a terminal would, end
 * what it waits for: every process that came since the eval began. */
function kick() {
  const todo = childrenOf(process.pid).filter((pid) => !children.has(pid));
  while (todo.length > 0) {
    const pid = todo.pop();
    todo.push(...childrenOf(pid));
    try {
      process.kill(pid, 'SIGINT');
    } catch {
      // gone already
    }
  }
}

function childrenOf(pid) {
  try {
    return readFileSync(`/proc/${pid}/task/${pid}/children`, 'latin1').split(' ').filter(Boolean).map(Number);
  } catch {
    return [];
  }
}

/** The session is over; the first thread ends the process, or, when it is too busy to hear of it, we do. */
function end(why) {
  wanted = 0;
  parentPort.postMessage({ op: why });
  setTimeout(() => process.kill(process.pid, 'SIGKILL'), LAST_MS);
}
