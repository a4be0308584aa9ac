-- A batch and its position, if nobody has raised the epoch since. All that could be refused is looked at before
-- anything is written: what a script has done stays done.
-- KEYS: the stream's position, then the stream or list, or the key of each record.
-- ARGV: the epoch, the progress, what to do, how many entries the stream keeps (0: all), and the records: an element of a
-- list as it is, others as packed lists of texts. An empty one removes its key.
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if epoch ~= ARGV[1] then
  return redis.error_reply('FENCED ' .. (epoch or '0'))
end
local kind, first = ARGV[3], 5
if kind == 'stream' or kind == 'list' then
  local found = redis.call('TYPE', KEYS[2])['ok']
  if found ~= 'none' and found ~= kind then
    return redis.error_reply('WRONGTYPE the key has a ' .. found)
  end
end
if kind == 'stream' then
  for at = first, #ARGV do
    redis.call('XADD', KEYS[2], '*', unpack(cmsgpack.unpack(ARGV[at])))
  end
  if ARGV[4] ~= '0' then
    redis.call('XTRIM', KEYS[2], 'MAXLEN', '~', ARGV[4])
  end
elseif kind == 'list' then
  for at = first, #ARGV do
    redis.call('RPUSH', KEYS[2], ARGV[at])
  end
else
  for at = first, #ARGV do
    local key, texts = KEYS[at - first + 2], cmsgpack.unpack(ARGV[at])
    if kind == 'hash' or #texts == 0 then
      redis.call('DEL', key)
    end
    if #texts > 0 then
      redis.call(kind == 'hash' and 'HSET' or 'SET', key, unpack(texts))
    end
  end
end
redis.call('HSET', KEYS[1], 'progress', ARGV[2])
return 'OK'
