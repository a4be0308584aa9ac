SELECT number, name, applied_at FROM headgate.migration ORDER BY number
