-- Raise the epoch of a stream, unless it is as high already, or the time until which its node may act is over by the
-- clock of this server.
-- KEYS: the stream's position. ARGV: the epoch, the time in microseconds; without a time, nothing is raised.
local now = redis.call('TIME')
local now_us = now[1] * 1000000 + now[2]
local found = redis.call('HMGET', KEYS[1], 'epoch', 'progress')
if ARGV[2] then
  if found[1] and tonumber(found[1]) >= tonumber(ARGV[1]) then
    return { 'FENCED', found[1] }
  end
  if now_us >= tonumber(ARGV[2]) then
    return { 'LATE' }
  end
  redis.call('HSET', KEYS[1], 'epoch', ARGV[1])
end
return { 'OK', string.format('%.0f', now_us), found[1], found[2] }
