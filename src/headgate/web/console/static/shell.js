// What every page in the frame has: buttons that act, commands to copy, keys, and the state of the link.

import "./act.js";
import "./command.js";
import "./keys.js";
import "./link.js";
