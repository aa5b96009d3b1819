# Runs once inside the new namespaces. Nothing done here reaches the machine.
mount -n --make-rprivate /

# Empty folders wherever the kubelet, containerd, runc, CNI and (but for -n) mount write by themselves.
for dir in /run /var/lib /var/log; do mount -n -t tmpfs -o mode=755 tmpfs "$dir"; done

mount -t proc proc /proc
mount -t sysfs sysfs /sys # of the new network namespace

# A /dev of the node's own, where a test may make /dev/nvidia0. GPUs that the machine has are not the node's.
mount -t tmpfs -o mode=755 dev /mnt
cp -ax /dev/. /mnt
rm -rf /mnt/nvidia*
mount --rbind /dev/pts /mnt/pts
mount --rbind /dev/shm /mnt/shm
mount --move /mnt /dev

mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
for hierarchy in $CGROUPS; do
	mkdir "/sys/fs/cgroup/${hierarchy%%=*}"
	mount -t cgroup -o "${hierarchy#*=}" cgroup "/sys/fs/cgroup/${hierarchy%%=*}"
done

# The kubelet's device-plugin folder is a constant of its build, whatever --root-dir says. Bound from the work folder, its sockets can be
# reached from outside too.
mkdir /var/lib/kubelet
mount --bind "$WORK/root" /var/lib/kubelet

# The kubelet sets these, and they are not namespaced: it gets copies to write on.
for sysctl in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	mkdir -p "/run/sysctl/${sysctl%/*}"
	cat "/proc/sys/$sysctl" >"/run/sysctl/$sysctl"
	mount --bind "/run/sysctl/$sysctl" "/proc/sys/$sysctl"
done

# A program that looks up its own host's name would wait for name servers, which the node cannot reach.
echo "$NODE" >/proc/sys/kernel/hostname
printf '127.0.0.1 localhost\n%s %s\n' "$IP" "$NODE" >/run/hosts
mount --bind /run/hosts /etc/hosts

mount --make-rshared / # as on a real node: containers may ask for mount propagation

ip link set lo up
ip addr add "$IP/24" dev eth0
ip link set eth0 up
ip route add default via "$MACHINE_IP"
