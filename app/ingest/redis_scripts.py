"""What the queue's server does in one go; each script touches the stream of one shard alone.

Scripts and not MULTI: a transaction is refused when memory is full, these are not.
"""

# KEYS: stream. ARGV: group, entry ids.
DONE = """
redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 2))
return redis.call('XDEL', KEYS[1], unpack(ARGV, 2))
"""

# KEYS: stream. ARGV: group, our own name, least idle time in milliseconds. A consumer's name goes
# only when nothing is pending under it: with the name its entries would be forgotten. Looking
# and deleting in one go, since a consumer that takes an entry in between would lose it.
FORGET = """
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local fields = {}
  for i = 1, #consumer, 2 do fields[consumer[i]] = consumer[i + 1] end
  if fields.name ~= ARGV[2] and fields.pending == 0 and fields.idle >= tonumber(ARGV[3]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], fields.name)
  end
end
"""

# KEYS: stream. How many entries, and the id of the oldest. An id alone, since
# its entry may have 8 MiB.
WAITING = """
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
return {redis.call('XLEN', KEYS[1]), oldest and oldest[1] or false}
"""

# KEYS: stream. ARGV: how many. Ids of the oldest entries.
OLDEST = """
local ids = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', ARGV[1])) do
  ids[#ids + 1] = entry[1]
end
return ids
"""

# KEYS: stream. The newest id that there ever was.
NEWEST = """
if redis.call('EXISTS', KEYS[1]) == 0 then return '0-0' end
local fields = redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #fields, 2 do
  if fields[i] == 'last-generated-id' then return fields[i + 1] end
end
"""
