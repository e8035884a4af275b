// The file of a project that lists its packages, read with the session's rights.

import fs from 'node:fs';

import { Error } from './builtins.mjs';

const PROJECT = 'package.json';
const MOST_BYTES = 1024 * 1024;

const { existsSync, readFileSync, statSync } = fs;

/** Return name and text of a file, or of the one in the working directory; nothing if there is none. */
export function readProject(file) {
  const name = file || PROJECT;
  if (!file && !existsSync(name)) return {};
  if (statSync(name).size > MOST_BYTES) throw new Error(`${name} is longer than ${MOST_BYTES} bytes`);
  return { file: name, text: readFileSync(name, 'utf8') };
}
