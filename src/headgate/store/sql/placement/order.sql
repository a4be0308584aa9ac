UPDATE headgate.wish SET stepping = true WHERE stream = ANY ($1::uuid[])
